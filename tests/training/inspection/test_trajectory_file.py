"""Documents that a user writes: what is read, and what is refused in which words."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from kifu.credit import Episode
from kifu.errors import UsageError
from kifu.training.inspection.trajectory_branches import trees_of
from kifu.training.inspection.trajectory_episodes import episode_of
from kifu.training.inspection.trajectory_file import check_given, read_given

GOOD: dict[str, Any] = {
    "gamma": 0.9,
    "groups": [
        {
            "task": "q1",
            "trajectories": [
                {"id": "T1", "reward": 1.0, "turns": [{"tokens": [{"logprob": -0.1}]}, {"tokens": [{}]}]},
                {"id": "T2", "reward": None, "turns": [{"reward": 0.5, "tokens": [{"observation": True}, {}]}]},
            ],
        }
    ],
}


def changed(path: str, value: object) -> dict[str, Any]:
    """The good document with one field set; ``path`` is dotted, numbers are places of lists."""
    document = deepcopy(GOOD)
    node: Any = document
    *way, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    for part in way:
        node = node[part] if isinstance(part, int) else node.setdefault(part, {})
    node[last] = value
    return document


T1 = "groups.0.trajectories.0"


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (f"{T1}.turns.0.tokens.0.logprob", float("nan"), ["trajectory T1", "turn 0", "token 0", "`logprob`", "nan"]),
        (f"{T1}.turns.0.tokens.0.logprob", float("inf"), ["trajectory T1", "turn 0", "`logprob`", "inf"]),
        (f"{T1}.turns.0.tokens.0.logprob", float("-inf"), ["trajectory T1", "`logprob`", "-inf", "finite"]),
        (f"{T1}.turns.0.tokens.0.logprob", 0.2, ["trajectory T1", "turn 0", "`logprob`", "found 0.2", "at most 0"]),
        (f"{T1}.turns.0.tokens.0.behaviour_logprob", 1, ["T1", "`behaviour_logprob`", "found 1"]),
        (f"{T1}.turns.0.tokens.0.logprob", "-0.1", ["trajectory T1", "`logprob`", "found '-0.1'"]),
        (f"{T1}.turns.1.tokens", [], ["trajectory T1", "turn 1", "`tokens`", "none the policy wrote"]),
        (f"{T1}.turns.1.tokens", [{"observation": True}], ["trajectory T1", "turn 1", "`tokens`"]),
        (f"{T1}.turns", [], ["trajectory T1", "`turns`"]),
        (f"{T1}.turns.0.valeu", 0.1, ["trajectory T1", "turn 0", "`valeu`", "did you mean `value`?"]),
        (f"{T1}.turns.0.duration", 0, ["trajectory T1", "turn 0", "`duration`", "more than 0"]),
        (f"{T1}.reward", float("nan"), ["trajectory T1", "`reward`", "finite"]),
        (f"{T1}.outcome", "sucess", ["trajectory T1", "`outcome`", "did you mean `success`?"]),
        (f"{T1}.task", "q2", ["trajectory T1", "`task`", "'q2'", "'q1'", "one group"]),
        (f"{T1}.id", "T2", ["trajectory T2", "`id`", "found twice"]),
        (f"{T1}.branch", {"parent": "T9", "turn": 1}, ["trajectory T1", "`branch.parent`", "`T9`", "Known: T2"]),
        (f"{T1}.branch", {"parent": "T1"}, ["trajectory T1", "`branch.parent`"]),
        (f"{T1}.branch", {"parent": "T2", "turn": 3}, ["trajectory T1", "`branch.turn`", "found 3"]),
        (f"{T1}.branch", {"parent": "T2", "turn": 2}, ["trajectory T1", "`branch.turn`", "found 2", "parent T2 has 1"]),
        (f"{T1}.branch", {"parent": "T2", "turn": 1}, ["trajectory T1", "`branch.turn`", "found 1", "parent T2 has 1"]),
        (f"{T1}.turns.0.rewards", {"reward": 1.0}, ["trajectory T1, turn 0, `rewards.reward`", "own `reward`"]),
        (f"{T1}.turns.0", {"tool": "", "calls_tool": True}, ["turn 0, `calls_tool`: found true", "`tool` calls none"]),
        (f"{T1}.turns.0", {"tool": "s", "calls_tool": False}, ["turn 0, `calls_tool`: found false", "calls 's'"]),
        (f"{T1}.turns", [{"next_state": "b"}, {"state": "c"}], ["turn 0, `next_state`: found 'b'", "is 'c'"]),
        (f"{T1}.turns.0.entropy", 1e308, ["trajectory T1, turn 0, `entropy`: found 1e+308, expected at most"]),
        (f"{T1}.turns.0.tokens.0.entropy", 1e308, ["turn 0, token 0, `entropy`: found 1e+308, expected at most"]),
        ("gamma", 1.5, ["`gamma`", "found 1.5", "[0, 1]"]),
        ("gamma", -0.1, ["`gamma`", "found -0.1"]),
        ("groups", [], ["`groups`"]),
        ("groups.0.trajectories", [], ["group 0", "`trajectories`"]),
        ("components", {"format": 1.0}, ["`components.format`", "no turn is paid `format`"]),
        ("gama", 1.0, ["`gama`", "did you mean `gamma`?"]),
        (f"{T1}.branch", {"turn": -1}, ["trajectory T1, `branch.turn`: found -1, expected at least 0"]),
        (f"{T1}.branch", {"trun": 1}, ["trajectory T1, `branch.trun`: unknown field", "did you mean `turn`?"]),
        (f"{T1}.branch", 3, ["trajectory T1, `branch`: found 3, expected an object; correct it, or leave it out"]),
        (f"{T1}.turns.0.rewards", {"a": "x"}, ["trajectory T1, turn 0, `rewards.a`: found 'x', expected a number"]),
        (f"{T1}.turns.0.tokens.0", 5, ["trajectory T1, turn 0, token 0: found 5, expected an object"]),
        (f"{T1}.turns.0.tokens", {}, ["trajectory T1, turn 0, `tokens`: found an object, expected a list"]),
        (f"{T1}.turns.0.tokens.0.observation", 1, ["token 0, `observation`: found 1, expected true or false"]),
        (f"{T1}.turns", None, ["trajectory T1, `turns`: found nothing, expected a list; correct it"]),
        ("components", {"a": None}, ["`components.a`: found nothing, expected a number"]),
        ("components", {"a": 1.0}, ["`components.a`: no turn is paid `a`", "no turn has them"]),
        ("on_truncation", "drop", ["`on_truncation`: found 'drop', expected 'exclude', 'terminal' or 'bootstrap'"]),
    ],
)
def test_what_cannot_be_meant_is_named_by_trajectory_turn_and_field(path: str, value: object, told: list[str]) -> None:
    with pytest.raises(UsageError) as raised:
        check_given(changed(path, value), where="f.json")
    assert [part for part in ["f.json", *told] if part not in str(raised.value)] == []


@pytest.mark.parametrize("path", [f"{T1}.branch", f"{T1}.turns.0.tokens", f"{T1}.reward", "components", "groups"])
@pytest.mark.parametrize("value", [3, "x", [], [1], {}, {"x": 1}, None, True, 2.5])
def test_no_message_speaks_of_the_checker_instead_of_the_file(path: str, value: object) -> None:
    """Whatever is refused: its place, what was found and what to do, and none of the words of pydantic."""
    try:
        check_given(changed(path, value), where="f.json")
    except UsageError as refused:
        lines = str(refused).splitlines()
        assert [line for line in lines if "nput should" in line or "Given" in line or "``" in line] == []
        assert [line for line in lines if not line.startswith("f.json: ") or ";" not in line] == []


def test_a_mark_of_the_byte_order_at_the_start_is_read_over(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert read_given(tmp_path / "f.json")[1].gamma == 0.9


def test_a_folder_is_told_from_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a folder; expected a JSON document.*--run RUN --step N"):
        read_given(tmp_path)
    with pytest.raises(UsageError, match="no such file"):
        read_given(tmp_path / "f.json")


def chain(**named: tuple[str | None, str | None]) -> dict[str, Any]:
    """One group of trajectories of two turns, each with its tree and its parent."""
    return {
        "groups": [
            {
                "trajectories": [
                    {
                        "id": name,
                        "reward": 0.0,
                        "turns": [{}, {}],
                        "tree": tree,
                        "branch": {"parent": parent, "turn": 0 if parent is None else 1},
                    }
                    for name, (tree, parent) in named.items()
                ]
            }
        ]
    }


def left_nobody(turn: int) -> dict[str, Any]:
    """One trajectory of two turns that says before which turn it branched and not from whom."""
    return {"groups": [{"trajectories": [{"id": "A", "reward": 0.0, "turns": [{}, {}], "branch": {"turn": turn}}]}]}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (chain(A=(None, "C"), B=(None, "A"), C=(None, "B")), ["trajectory A", "`branch.parent`", "A from C from B"]),
        (chain(A=("red", None), B=("blue", "A")), ["trajectory B", "`tree`", "'blue'", "parent A", "'red'"]),
        (left_nobody(1), ["trajectory A", "`branch.turn`", "found 1", "`branch.parent` is missing"]),
        (left_nobody(3), ["trajectory A", "`branch.turn`", "found 3", "`branch.parent` is missing"]),
    ],
)
def test_branches_that_cannot_have_grown_so_are_refused(document: dict[str, Any], told: list[str]) -> None:
    with pytest.raises(UsageError) as raised:
        check_given(document, where="f.json")
    assert [part for part in told if part not in str(raised.value)] == []


def test_a_branch_of_a_branch_stands_in_the_tree_of_the_root() -> None:
    given = check_given(chain(R=("red", None), B=(None, "R"), C=(None, "B"), S=(None, None), T=(None, "S")), where="f")
    assert trees_of(given.groups[0]) == {"R": "red", "B": "red", "C": "red", "S": "S", "T": "S"}


def test_a_trajectory_without_an_id_is_named_by_its_place() -> None:
    document = deepcopy(GOOD)
    del document["groups"][0]["trajectories"][1]["id"]
    with pytest.raises(UsageError, match=r"group 0, trajectory 1, `id`: missing"):
        check_given(document, where="f.json")


@pytest.mark.parametrize("text", ["{", "[]", '"x"', "{}"])
def test_another_document_is_refused_with_what_was_expected(tmp_path: Path, text: str) -> None:
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(UsageError, match="groups"):
        read_given(tmp_path / "f.json")


def numbers(trajectory: dict[str, Any], **above: object) -> Episode | str:
    document = {"groups": [{"trajectories": [{"id": "T", **trajectory}]}], **above}
    given = check_given(json.loads(json.dumps(document)), where="f")
    return episode_of(given.groups[0].trajectories[0], given, tree="T", needs_reward=True)


def paid(found: Episode | str) -> list[float]:
    assert isinstance(found, Episode)
    return [float(reward) for reward in found.rewards_K]


def test_the_reward_is_paid_once_at_the_end_and_those_of_turns_on_the_way() -> None:
    turns = [{"reward": 0.25, "rewards": {"format": 1.0}}, {"reward": 0.0, "rewards": {"format": 2.0}}]

    assert paid(numbers({"reward": 1.0, "turns": turns})) == [0.25, 1.0]
    assert paid(numbers({"reward": 1.0, "turns": turns}, components={"format": 0.5})) == [0.75, 2.0]


def test_shaping_adds_the_difference_of_potentials_where_it_is_asked_for() -> None:
    item = {"reward": 1.0, "turns": [{"potential": 0.1}, {"potential": 0.5}]}

    assert paid(numbers(item, gamma=0.9)) == [0.0, 1.0]
    assert paid(numbers(item, gamma=0.9, shaping=True)) == pytest.approx([0.9 * 0.5 - 0.1, 1.0 - 0.5])


@pytest.mark.parametrize(
    ("item", "above", "expected"),
    [
        ({"outcome": "env_error"}, {}, "infrastructure error (env_error)"),
        ({"reward": None}, {}, "no reward"),
        ({"outcome": "turn_limit", "reward": 1.0}, {}, "without `final_value`"),
        ({"outcome": "turn_limit", "reward": 1.0, "final_value": 0.3}, {"on_truncation": "exclude"}, "excluded"),
    ],
)
def test_who_takes_no_part_is_told_why(item: dict[str, Any], above: dict[str, Any], expected: str) -> None:
    found = numbers({"turns": [{}], **item}, **above)
    assert isinstance(found, str)
    assert expected in found


def test_a_cut_goes_on_being_worth_its_value_or_counts_as_the_end() -> None:
    item: dict[str, Any] = {"outcome": "turn_limit", "reward": None, "final_value": 0.3, "turns": [{}]}

    bootstrapped = numbers(item)
    assert isinstance(bootstrapped, Episode)
    assert bootstrapped.boundary == 0.3
    ended = numbers({**item, "reward": 0.0}, on_truncation="terminal")
    assert isinstance(ended, Episode)
    assert ended.boundary == 0.0


def test_facts_of_turns_are_read_and_derived() -> None:
    tokens = [{"entropy": 0.2, "behaviour_logprob": -1.0}, {"observation": True}, {"entropy": 0.4}]
    found = numbers(
        {
            "reward": 0.0,
            "branch": {"parent": None, "turn": 0},
            "turns": [
                {"state": "a", "tokens": tokens, "gold_logprob": -2.0},
                {"state": "b", "next_state": "c", "hindsight_logprob": -0.5, "segment": 1},
            ],
        }
    )

    assert isinstance(found, Episode)
    first, second = found.turns
    assert (first.num_tokens, first.state, first.next_state, second.next_state) == (2, "a", "b", "c")
    assert first.entropy == pytest.approx(0.3)
    assert first.gold_logprob == -2.0
    assert (first.hindsight_logprob, first.segment) == (None, 0)
    assert (second.hindsight_logprob, second.segment) == (-0.5, 1)
    assert first.logprobs_N is None, "one token lacks it"
    assert found.branch is None
    assert found.values_K is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"gamma": ' + "9" * 5_000 + "}", "not JSON"),
        ('{"gamma": 1.0, "gamma": 0.5, "groups": []}', "`gamma` twice"),
    ],
)
def test_text_that_no_parser_should_take_is_refused_with_its_file(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "odd.json"
    file.write_text(text)

    with pytest.raises(UsageError, match=said) as caught:
        read_given(file)

    assert str(file) in str(caught.value)


def test_what_is_no_regular_file_is_not_read() -> None:
    """A device would never end."""
    with pytest.raises(UsageError, match="not a regular file"):
        read_given(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("path", "value"),
    [(f"{T1}.reward", 1e308), (f"{T1}.turns.0.reward", -1e12), (f"{T1}.turns.0.tokens.0.logprob", -1e30)],
)
def test_numbers_that_would_overflow_are_refused_where_they_stand(path: str, value: float) -> None:
    with pytest.raises(UsageError, match="trajectory T1"):
        check_given(changed(path, value), where="file")


PARENT: dict[str, Any] = {"id": "A", "reward": 1.0, "turns": [{"state": "s", "entropy": 5.0}, {}, {}]}


def grown(*branches: dict[str, Any], first: dict[str, Any] = PARENT) -> dict[str, Any]:
    return {"groups": [{"trajectories": [first, *({"reward": 0.0, **item} for item in branches)]}]}


@pytest.mark.parametrize(
    ("turn", "told"),
    [
        ({"entropy": 0.0}, "turn 0, `entropy`: found 0.0, and trajectory A, which shares the turn, has 5.0"),
        ({"state": "t"}, "turn 0, `state`: found 't', and trajectory A, which shares the turn, has 's'"),
        ({"reward": 1.0}, "turn 0, `reward`: found 1.0, and trajectory A"),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_a_branch_repeats_the_turns_before_it_left(turn: dict[str, Any], told: str, order: int) -> None:
    """In either order of the file it is the branch that is wrong."""
    document = grown({"id": "B", "branch": {"parent": "A", "turn": 1}, "turns": [turn, {"state": "own"}]})
    document["groups"][0]["trajectories"].sort(key=lambda item: item["id"], reverse=order < 0)
    with pytest.raises(UsageError) as raised:
        check_given(document, where="f.json")
    assert f"trajectory B, {told}" in str(raised.value)


def test_what_a_branch_does_not_say_and_what_depends_on_its_end_may_differ() -> None:
    first = {**PARENT, "turns": [{"state": "s", "hindsight_logprob": -1.0}, {}]}
    check_given(
        grown({"id": "B", "branch": {"parent": "A", "turn": 1}, "turns": [{"hindsight_logprob": -2.0}]}, first=first),
        where="f.json",
    )


def test_branches_of_one_turn_agree_though_their_parent_says_nothing_of_it() -> None:
    one, two = (
        {"id": name, "branch": {"parent": "A", "turn": 2}, "turns": [{}, {"tokens": [{"entropy": number}]}]}
        for name, number in (("B", 1.0), ("C", 2.0))
    )
    with pytest.raises(UsageError, match=r"trajectory C, turn 1, token 0, `entropy`: found 2.0, and trajectory B"):
        check_given(grown(one, two), where="f.json")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (
            '{"groups": [{"trajectories": [{"id": "a", "turns": [{"state": "\\ud800"}]}]}]}',
            "trajectory a, turn 0, `state`",
        ),
        ('{"groups": [{"trajectories": [{"id": "a", "turns": [{"rewards": {"\\uDC00": 1}}]}]}]}', "turn 0, `rewards."),
        ('{"groups": [], "options": {"x": [["\\udfff"]]}}', "`options.x`, item 0, item 0: found '\\udfff'"),
    ],
)
def test_half_a_character_is_refused_where_it_stands(tmp_path: Path, text: str, place: str) -> None:
    file = tmp_path / "f.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="half of a pair") as raised:
        read_given(file)
    assert place in str(raised.value)
    str(raised.value).encode()


def test_whole_pairs_are_characters(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    file.write_text('{"groups": [{"trajectories": [{"id": "\\ud83d\\ude00", "turns": [{}]}]}]}')
    assert read_given(file)[1].groups[0].trajectories[0].id == "\U0001f600"


def test_long_documents_take_no_more_than_time_in_proportion(tmp_path: Path) -> None:
    """Many times as long where either were quadratic: chains of branches, a last key that is repeated."""
    turns: list[dict[str, Any]] = [{}, {}]
    items: list[dict[str, Any]] = [{"id": "0", "turns": turns}]
    items += [{"id": str(at), "branch": {"parent": str(at - 1), "turn": 1}, "turns": turns} for at in range(1, 4_000)]
    given = check_given({"groups": [{"trajectories": items[::-1]}]}, where="f.json")
    assert set(trees_of(given.groups[0]).values()) == {"0"}
    file = tmp_path / "f.json"
    file.write_text("{" + ", ".join(f'"{at}": 1' for at in range(100_000)) + ', "99999": 2}')
    with pytest.raises(UsageError, match="`99999` twice"):
        read_given(file)
