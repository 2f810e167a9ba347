"""Groups that branch, end to end: what is shared, what is counted, what is refused, what comes again."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kifu.credit.branching import EntropyBranching, FixedStart, TopScore, TreeExpansion
from kifu.engines import build_engine
from kifu.errors import ExperimentError
from kifu.records import BlobStore, Estimate, Origin, Purpose, Trajectory, content_digest
from kifu.records.ledger import Bucket, Count
from kifu.records.reader import RunReader
from kifu.records.turns import TOKEN_ENTROPY
from kifu.training.collection.books import Books
from kifu.training.collection.branching import Grower, branching_setting, path_of, vocabulary_of
from kifu.training.collection.collect import Collector
from kifu.training.experiment.prepare import prepare
from kifu.training.experiment.reading import Loaded, load_experiment
from kifu.training.inspection.audit import audit
from kifu.training.run import train

Load = Callable[..., Loaded]
Make = Callable[..., Trajectory]
HERE = Path(__file__).parents[1]
REPLAYED, UNKEPT = (
    f"environment.name='{HERE / 'branching_worlds.py'}:{name}KeyDoor'" for name in ("Replayed", "Unkept")
)
METHODS = {
    "agentic_reinforced_po": ("{ initial_rollouts = 3, attribution = 'hard' }", "entropy after_result"),
    "aepo": ("{ initial_rollouts = 3, entropy_side = 'before_call' }", "entropy before_call"),
    "at2po": ("{ initial_rollouts = 4, expansion_rounds = 2, beam_size = 2 }", "node of highest score"),
    "tree_grpo": ("{ trees = 2, expansions = 3 }", "random node"),
}


@pytest.fixture
def branching(load: Load) -> Callable[..., Loaded]:
    """The key_door recipe with a method that branches, groups of 8."""

    def make(method: str, *overrides: str) -> Loaded:
        return load(
            f"credit={{ algorithm = '{method}', options = {METHODS[method][0]} }}",
            "update.group_size=8",
            "update.prompts_per_step=2",
            "environment.on_truncation=terminal",
            *overrides,
        )

    return make


def rollouts(run: Path) -> list[Trajectory]:
    return [item for item in RunReader(run).trajectories() if item.key.purpose is Purpose.TRAIN]


def branches(items: list[Trajectory]) -> list[tuple[Trajectory, Trajectory]]:
    """Every branch with its parent."""
    known = {item.id: item for item in items}
    return [(item, known[item.branch.parent]) for item in items if item.branch is not None]


def policy_tokens(trajectory: Trajectory, *, turns: range) -> list[tuple[int, float]]:
    """Sampled ids and logprobs of some turns, by walking over the spans."""
    found: list[tuple[int, float]] = []
    for span in (span for tape in trajectory.tapes for span in tape.spans if span.origin is Origin.POLICY):
        if span.turn in turns:
            assert span.logprobs is not None
            found += zip(span.token_ids.tolist(), span.logprobs.tolist(), strict=True)
    return found


@pytest.mark.parametrize(
    ("method", "overrides"), [(method, ()) for method in METHODS] + [("at2po", (REPLAYED,)), ("aepo", (REPLAYED,))]
)
def test_branches_share_tape_and_state_with_their_parents(
    branching: Callable[..., Loaded], tmp_path: Path, method: str, overrides: tuple[str, ...]
) -> None:
    run = tmp_path / "run"
    train(branching(method, *overrides), out=run, quiet=True)

    found = branches(rollouts(run))
    assert len(rollouts(run)) == 2 * 2 * 8
    assert len(found) > 4
    for child, parent in found:
        branch = child.branch
        assert branch is not None
        start = parent.turns[branch.turn].start
        assert child.tape_ids(0)[:start].tolist() == parent.tape_ids(0)[:start].tolist()
        shared = range(branch.turn)
        assert policy_tokens(child, turns=shared) == policy_tokens(parent, turns=shared)
        assert child.turns[: branch.turn] == parent.turns[: branch.turn]
        noted = parent.turns[branch.turn].kept_state
        assert noted is not None
        assert branch.digest == noted[0]
        assert branch.restored_by == ("replay" if overrides else "snapshot")
        assert branch.chosen_by == METHODS[method][1]
        assert child.key > parent.key
    report = audit(run, replay=True)
    assert (report.problems, report.not_rebuildable, report.ledger_closed) == ((), (), True)
    assert report.max_logprob_error == pytest.approx(0.0, abs=1e-6)


def test_a_shared_token_is_counted_once_and_its_uses_are_told(branching: Callable[..., Loaded], tmp_path: Path) -> None:
    """The oracle names every sampled token by the stream that sampled it, its turn and its place there."""
    run = tmp_path / "run"
    train(branching("at2po"), out=run, quiet=True)

    lines = [json.loads(line) for line in (run / "plan.jsonl").read_text().splitlines()]
    for line in (line for line in lines if line["rows"]):
        members = [item for item in rollouts(run) if item.key.step == line["step"]]
        trained = {name for name, bucket in line["buckets"].items() if bucket == Bucket.TRAINED}
        holders: Counter[tuple[str, int, int]] = Counter()
        everything: set[tuple[str, int, int]] = set()
        for item in members:
            for span in (span for tape in item.tapes for span in tape.spans if span.sampling is not None):
                assert span.sampling is not None
                tokens = {(span.sampling.stream, span.turn, at) for at in range(len(span))}
                everything |= tokens
                holders.update(tokens if item.id in trained else ())
        ledger = line["ledger"]
        assert sum(tokens for _, tokens in ledger["closed"].values()) - ledger["closed"].get("evaluation", [0, 0])[
            1
        ] == len(everything)
        assert ledger["times_used"] == {str(times): count for times, count in sorted(Counter(holders.values()).items())}
        assert max(holders.values(), default=2) > 1, "some token is shared"
        assert line["denominators"]["tokens"] == sum(holders.values())


async def test_what_the_record_holds_grows_into_the_same_tree(branching: Callable[..., Loaded], tmp_path: Path) -> None:
    """A process that died after some branches were accepted: the rest is decided and written as it would have been."""
    prepared = prepare(branching("agentic_reinforced_po"))
    plan = prepared.stages[-1].algorithm.plan
    states = BlobStore(tmp_path / "blobs")

    async def grown(have: Mapping[str, Trajectory]) -> tuple[list[Trajectory], list[str]]:
        accepted: list[str] = []

        async def accept(trajectory: Trajectory) -> None:
            accepted.append(trajectory.id)

        books = Books()
        collector = Collector(
            setting=branching_setting(prepared.setting, plan, environment=prepared.environment, states=states),
            sampler=build_engine("recurrent", prepared.engine_spec(prepared.stages[-1], seed=0)).sampler,
            tasks=prepared.task_source(0),
            accept=accept,
            seed=0,
            books=books,
            grower=Grower(plan=plan.rollout, vocabulary=vocabulary_of(prepared.renderer)),
        )
        groups = await collector.training_groups(0, prompts=2, size=8, first=0, have=have)
        members = [member for group in groups for member in group.members]
        started, _ = books.close([member.id for member in members])
        assert started == Count(attempts=16, tokens=sum(member.sampled_tokens for member in members))
        return members, accepted

    first, accepted = await grown({})
    assert len(branches(first)) > 2
    assert sorted(accepted) == [member.id for member in first]

    for kept in (4, 7, 13):
        have = {member.id: member for member in first[:kept]}
        again, accepted = await grown(have)
        assert sorted(accepted) == [member.id for member in first[kept:]]
        assert [content_digest(member) for member in again] == [content_digest(member) for member in first]


def test_a_language_models_groups_branch_too(tmp_path: Path) -> None:
    overrides = (
        "policy.model=tiny",
        "credit={ algorithm = 'agentic_reinforced_po', options = { initial_rollouts = 3, head_tokens = 4 } }",
        "environment.on_truncation=terminal",
        "update.group_size=8",
        "update.prompts_per_step=2",
        "update.steps=1",
        "evaluation.tasks=1",
        "machine.sampler_dtype=float32",
        "machine.trainer_dtype=float32",
        "machine.threads=1",
    )
    recipe = HERE.parents[1] / "recipes" / "key_door_text.toml"
    run = tmp_path / "run"
    train(load_experiment(recipe, profile="check", overrides=overrides), out=run, quiet=True)

    found = branches(rollouts(run))
    assert found
    for child, parent in found:
        assert child.branch is not None
        assert child.shared_tokens == parent.turns[child.branch.turn].start > parent.turns[0].stop
        assert all(1 <= len(turn.token_entropies) <= 4 for turn in child.turns)
    report = audit(run, replay=True)
    assert (report.problems, report.ledger_closed) == ((), True)
    assert report.max_logprob_error == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_an_environment_that_cannot_be_put_back_is_refused(branching: Callable[..., Loaded], method: str) -> None:
    with pytest.raises(ExperimentError, match="rollouts cannot branch in it: it declares no snapshot"):
        prepare(branching(method, UNKEPT))


@pytest.mark.parametrize(
    ("method", "size", "why"),
    [
        ("agentic_reinforced_po", 3, "begins a group with 3 whole rollouts and branches the rest"),
        ("at2po", 9, r"grows groups of 8 rollouts \(4 at first, 2 rounds\); found update.group_size = 9"),
        ("tree_grpo", 6, r"grows groups of 8 rollouts \(2 at first, 1 rounds\); found update.group_size = 6"),
    ],
)
def test_a_group_that_the_plan_does_not_fill_is_refused(
    branching: Callable[..., Loaded], method: str, size: int, why: str
) -> None:
    with pytest.raises(ExperimentError, match=why):
        prepare(branching(method, f"update.group_size={size}"))


def test_a_path_has_the_entropies_of_its_record(make_record: Make) -> None:
    record = make_record([3, 2])
    kept = tuple(Estimate(name=TOKEN_ENTROPY, value=value, policy_version=0) for value in (0.5, 0.25, 0.125))
    mean = Estimate(name="entropy", value=0.7, policy_version=0)
    first, second = record.turns
    record = replace(record, turns=(replace(first, estimates=(mean, *kept)), replace(second, estimates=kept[:2])))

    path = path_of(record, EntropyBranching(head=2))

    assert path.heads_K == (0.75, 0.75)
    assert path.entropies_K == (0.7, 0.5), "the mean of -log pi where nobody recorded the mean entropy"
    sampled = path_of(record, TreeExpansion(choice=TopScore(entropy="sampled")))
    assert sampled.entropies_K == (0.5, 0.5)
    assert sampled.heads_K == (0.0, 0.0)


def test_an_engine_without_entropies_is_named(make_record: Make) -> None:
    with pytest.raises(
        ExperimentError, match="m000/a0, turn 0: the method branches by entropy, and the engine recorded"
    ):
        path_of(make_record([1]), EntropyBranching(start=FixedStart(count=1)))
