"""A question that takes two searches: the first finds the name that the second one needs."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from kifu.envs.contract import Environment
from kifu.envs.retrieval import best_passages
from kifu.envs.spec import Capabilities, Reply, Snapshot, Task
from kifu.envs.splits import in_share, split_range
from kifu.envs.tools import tool
from kifu.errors import UsageError
from kifu.records import Json, StopReason, ToolCall, Verdict
from kifu.verify.text import squeeze

TURNS = 5
"""Turns the task allows; the shortest success takes 3."""
TOP = 3
"""Passages a search shows."""
_EACH = 5
"""People, towns, rivers and firms of one corpus."""


QUERIES: Mapping[str, tuple[str, str]] = {
    "river": ("{} born", "{} river"),
    "firm": ("{} employed", "firm {} located"),
}
"""Family to the two queries of the demonstrator, with a gap for the name that each is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a corpus is made of."""

    people: tuple[str, ...]
    towns: tuple[str, ...]
    rivers: tuple[str, ...]
    firms: tuple[str, ...]


OLD = Names(
    people=("Anna Bell", "Peter Lamb", "Ruth Stone", "Carl West", "Ida Park", "Otto Frost", "Mary Hill", "Tom Reed"),
    towns=("Marston", "Belford", "Ashby", "Corwen", "Dunmore", "Elton", "Fairview", "Granton"),
    rivers=("Tarn", "Wye", "Lune", "Esk", "Nidd", "Avon", "Dart", "Severn"),
    firms=("Apex", "Nova", "Delta", "Orion", "Summit", "Vertex", "Atlas", "Comet"),
)
NEW = Names(
    people=(
        "Jane Wood",
        "Hugo Field",
        "Clara Marsh",
        "Paul Rivers",
        "Nora Banks",
        "Max Winter",
        "Ella Moor",
        "Sam Ford",
    ),
    towns=("Hartwell", "Kilburn", "Langley", "Melrose", "Norwood", "Oakham", "Preston", "Redcar"),
    rivers=("Tyne", "Trent", "Ouse", "Tees", "Kennet", "Medway", "Ribble", "Teme"),
    firms=("Zenith", "Polar", "Quartz", "Ember", "Falcon", "Helix", "Indigo", "Jade"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Desk:
    """The question with its corpus, and what has happened so far."""

    question: str
    gold: str
    passages: tuple[str, ...]
    shown: tuple[int, ...] = ()
    """Passages that some search has shown, in the order of the corpus."""
    turns: int = 0
    answer: str | None = None
    invalid: int = 0
    stop: str | None = None


def _gold(task: Task) -> str:
    """The gold name."""
    return str(task.data["gold"])


class SearchText(Environment):
    """Search a small corpus twice, then answer. Every tool takes one string called arg."""

    id: ClassVar[str] = "search_text"
    capabilities: ClassVar[Capabilities] = Capabilities()
    instructions: ClassVar[str] = (
        'Use tools. Call search(query) or answer(value) as JSON, for example {"tool":"search","arg":"Anna born"}. '
        "One search is not enough: use what it finds in the next."
    )
    facts: ClassVar[Mapping[str, str]] = {
        "initial states": f"{_EACH} people, towns, rivers, firms; who was born where, who works for whom, which firm "
        "stands in which town and which town lies on which river; a question over two of these facts; drawn from the "
        "task's seed",
        "observations": f"the question, then per search the {TOP} best passages by BM25",
        "hidden": "the passages, until a search shows them",
        "actions": "search with any text, answer with a name",
        "reset, versions, seeds": "the task's seed fixes corpus and question; the world has no other randomness",
        "success": "the answer is the gold name: exact match without case, surrounding spaces and a final full stop",
        "failure": "another answer",
        "end": f"an answer, or {TURNS} turns without one (task budget, a terminal failure)",
        "reward": "verdict at the end: 1 for the gold name, else 0; no components",
        "irreversible": "answering",
    }

    gold_answer = staticmethod(_gold)

    def __init__(self) -> None:
        self.desk = _Desk(question="Where?", gold="nowhere", passages=("Nothing is known.",))

    def reset(self, task: Task, seed: int) -> str:
        """Hide the corpus and ask the question."""
        question, gold, passages = (task.data.get(name) for name in ("question", "gold", "passages"))
        are_texts = isinstance(passages, list) and bool(passages) and all(isinstance(item, str) for item in passages)
        if (
            not isinstance(passages, list)
            or not are_texts
            or not isinstance(question, str)
            or not isinstance(gold, str)
        ):
            raise UsageError(
                f"search_text task `{task.id}`: found data {list(task.data)}, expected question, "
                "gold and a list of passages; take tasks from SearchText.tasks(split, seed)"
            )
        self.desk = _Desk(question=question, gold=gold, passages=tuple(map(str, passages)))
        return question

    @tool
    def search(self, arg: str) -> Reply:
        """Find passages.

        Args:
            arg: the query.
        """
        found = best_passages(arg, self.desk.passages, top=TOP)
        if not found:
            return self._turn("Error: nothing found.", error=f"no passage shares a word with {arg!r}")
        self.desk = replace(self.desk, shown=tuple(sorted({*self.desk.shown, *found})))
        return self._turn(" ".join(self.desk.passages[at] for at in found))

    @tool
    def answer(self, arg: str) -> Reply:
        """Answer the question.

        Args:
            arg: the name.
        """
        right = squeeze(arg) == squeeze(self.desk.gold)
        return self._turn("", stop=StopReason.SUCCESS if right else StopReason.FAILURE, answer=arg)

    def invalid(self, error: str) -> Reply:
        """Anything else costs a turn."""
        self.desk = replace(self.desk, invalid=self.desk.invalid + 1)
        return self._turn("Error: bad call.", error=error)

    def _turn(
        self, text: str, *, stop: StopReason | None = None, answer: str | None = None, error: str | None = None
    ) -> Reply:
        desk = self.desk
        if desk.stop is not None:
            raise UsageError(f"the episode ended with {desk.stop}; reset before the next call")
        if stop is None and desk.turns + 1 >= TURNS:
            stop = StopReason.TASK_BUDGET
        self.desk = replace(desk, turns=desk.turns + 1, answer=answer, stop=stop)
        return Reply(text=text, stop=stop, error=error)

    def verify(self) -> Verdict:
        """Success is the gold name given with `answer`; saying it in prose is none."""
        desk = self.desk
        right = desk.answer is not None and squeeze(desk.answer) == squeeze(desk.gold)
        was_shown = any(desk.gold in desk.passages[at] for at in desk.shown)
        return Verdict(
            success=right,
            world_state_checks={"answered": desk.answer is not None, "right": right, "gold_was_shown": was_shown},
            invalid_actions=desk.invalid,
            verifier="search_text/1",
        )

    def snapshot(self) -> Snapshot:
        """The desk."""
        return {**asdict(self.desk), "passages": list(self.desk.passages), "shown": list(self.desk.shown)}

    def restore(self, ref: Snapshot) -> None:
        """Take back a desk."""
        if not isinstance(ref, dict) or set(ref) != set(asdict(self.desk)):
            raise UsageError(f"search_text: found snapshot {ref!r}, expected {', '.join(asdict(self.desk))}")
        self.desk = _Desk(**{**ref, "passages": tuple(ref["passages"]), "shown": tuple(ref["shown"])})  # type: ignore[arg-type]

    @classmethod
    def tasks(cls, split: str, seed: int) -> Iterable[Task]:
        """Questions of a split from ``seed`` on; none stands in two splits. The family is the kind of question."""
        for at in split_range(split, seed):
            yield _task(split, at)

    @classmethod
    def demonstrate(cls, task: Task, *, seed: int = 0, noise: float = 0.0) -> tuple[ToolCall | str, ...]:
        """Search for the first name, then for the one it led to, answer; with noise, a step is a stray call instead."""
        rng = random.Random(f"search_text/{task.id}/{seed}")
        world = cls()
        world.reset(task, seed)
        first, second = task.data["first"], task.data["second"]
        queries = QUERIES[task.family]
        plan = [_call("search", queries[0].format(first)), _call("search", queries[1].format(second))]
        calls: list[ToolCall | str] = []
        while world.desk.stop is None:
            missing = [call for call in plan if call not in calls]
            wanted = missing[0] if missing else _call("answer", world.desk.gold)
            call = _stray(world.desk, rng) if rng.random() < noise else wanted
            calls.append(call)
            world.step(call)
        return tuple(calls)


def _task(split: str, seed: int) -> Task:
    rng, names = random.Random(seed), NEW if split == "new_vocabulary" else OLD
    while True:
        data, family = _draw(rng, names)
        if in_share(split, f"{data['question']}/{data['gold']}/{data['passages']}"):
            return Task(id=f"search_text/{seed}", seed=seed, family=family, split=split, data=data)


def _draw(rng: random.Random, names: Names) -> tuple[dict[str, Json], str]:
    """A corpus and a question over two of its passages."""
    people, towns, rivers, firms = (
        rng.sample(pool, _EACH) for pool in (names.people, names.towns, names.rivers, names.firms)
    )
    born = {person: rng.choice(towns) for person in people}
    works = {person: rng.choice(firms) for person in people}
    stands = dict(zip(firms, towns, strict=True))
    lies = dict(zip(towns, rivers, strict=True))
    passages = [
        *(f"{person} was born in {town}." for person, town in born.items()),
        *(f"{person} is employed by {firm}." for person, firm in works.items()),
        *(f"The firm {firm} is located in {town}." for firm, town in stands.items()),
        *(f"{town} lies on the river {river}." for town, river in lies.items()),
    ]
    rng.shuffle(passages)
    person = rng.choice(people)
    family = rng.choice(("river", "firm"))
    if family == "river":
        question, gold = f"On which river lies the town where {person} was born?", lies[born[person]]
        second = born[person]
    else:
        question, gold = f"In which town is the firm located that employs {person}?", stands[works[person]]
        second = works[person]
    data: dict[str, Json] = {
        "question": question,
        "gold": gold,
        "passages": [*passages],
        "first": person,
        "second": second,
    }
    return data, family


def _call(name: str, arg: str) -> ToolCall:
    return ToolCall(name=name, arguments={"arg": arg})


def _stray(desk: _Desk, rng: random.Random) -> ToolCall:
    """One of: a search for another passage's first words, the question itself as a query, a guess."""
    passage = rng.choice(desk.passages)
    return rng.choice(
        [
            _call("search", " ".join(passage.split()[:2])),
            _call("search", desk.question),
            _call("answer", passage.split()[-1].removesuffix(".")),
        ]
    )
