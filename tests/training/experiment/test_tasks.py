"""Which task stands where: ranges apart, orders that every process agrees on."""

from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from kifu.envs import Environment, Task
from kifu.envs.suites.key_door import KeyDoor
from kifu.errors import EnvironmentFailure, ExperimentError
from kifu.training.experiment.tasks import (
    GeneratedTasks,
    ListedTasks,
    SeedRange,
    check_tasks,
    demonstration_task,
    parse_splits,
)


def count(split: str, seed: int) -> Iterable[Task]:
    """Endless tasks, one per seed."""
    while True:
        yield Task(id=f"{split}/{seed}", seed=seed, split=split)
        seed += 1


class TestSplits:
    def test_an_open_range_ends_before_the_next_one(self) -> None:
        found = parse_splits({"train": "seed 0..", "held_out": "seed 5_000..", "late": "seed 9_000 .. 9_999"})

        assert found == {
            "train": SeedRange(first=0, last=4_999),
            "held_out": SeedRange(first=5_000, last=8_999),
            "late": SeedRange(first=9_000, last=9_999),
        }
        assert [len(item) for item in found.values()] == [5_000, 4_000, 1_000]

    @pytest.mark.parametrize(
        ("splits", "told"),
        [
            ({"train": "0.."}, ["environment.splits.train: found '0..'", "expected `seed FIRST..`"]),
            ({"train": "seed -1.."}, ["found 'seed -1..'"]),
            ({"train": "seed 5..4"}, ["environment.splits.train: found 'seed 5..4', which holds no seed"]),
            ({"train": f"seed {'9' * 26}.."}, ["found 'seed 999", "expected seeds up to 9223372036854775807"]),
            ({"train": f"seed {'9' * 5000}.."}, ["found 'seed 999", "expected `seed FIRST..`"]),
            (
                {"train": "seed 0..10", "held_out": "seed 10..20"},
                ["`train` (0..10) and `held_out` (10..20) share seeds", "never be trained on"],
            ),
            ({"train": "seed 0..", "held_out": "seed 0.."}, ["share seeds"]),
            ({"train": "seed 0..99", "a": "seed 10..19", "b": "seed 50.."}, ["`train`", "`a`", "share seeds"]),
        ],
    )
    def test_what_is_no_partition_is_refused(self, splits: dict[str, str], told: list[str]) -> None:
        with pytest.raises(ExperimentError) as raised:
            parse_splits(splits)
        assert all(part in str(raised.value) for part in told)


class TestGenerated:
    ranges = parse_splits({"train": "seed 0..9", "held_out": "seed 100..104"})

    def test_training_goes_around_its_split_and_runs_start_apart(self) -> None:
        one = GeneratedTasks(generate=count, ranges=self.ranges, seed=0)
        two = GeneratedTasks(generate=count, ranges=self.ranges, seed=1)

        assert [one.training(index).seed for index in range(12)] == [*range(10), 0, 1]
        assert [two.training(index).seed for index in range(3)] == [3, 4, 5]

    def test_evaluation_is_the_same_for_every_seed_of_the_run(self) -> None:
        found = [
            [
                GeneratedTasks(generate=count, ranges=self.ranges, seed=seed).evaluation("held_out", at).id
                for at in range(5)
            ]
            for seed in (0, 7)
        ]
        assert found[0] == found[1] == [f"held_out/{seed}" for seed in range(100, 105)]

    def test_a_split_that_is_too_small_is_named(self) -> None:
        source = GeneratedTasks(generate=count, ranges=self.ranges, seed=0)
        with pytest.raises(
            ExperimentError, match="split `held_out` holds 5 seeds, task number 6 was asked for; ask for fewer tasks"
        ):
            source.evaluation("held_out", 5)


class TestListed:
    tasks = tuple(Task(id=f"{split}{at}", split=split) for split in ("train", "held_out") for at in range(5))

    def test_every_pass_is_a_permutation_and_passes_differ(self) -> None:
        source = ListedTasks(tasks=self.tasks, seed=3)
        passes = [tuple(source.training(5 * number + at).id for at in range(5)) for number in range(6)]

        assert all(Counter(found) == Counter(f"train{at}" for at in range(5)) for found in passes)
        assert len(set(passes)) > 1
        again = ListedTasks(tasks=self.tasks, seed=3)
        assert tuple(again.training(index).id for index in range(5)) == passes[0]
        other = ListedTasks(tasks=self.tasks, seed=4)
        assert [tuple(other.training(5 * number + at).id for at in range(5)) for number in range(6)] != passes

    def test_evaluation_keeps_the_order_of_the_list(self) -> None:
        source = ListedTasks(tasks=self.tasks, seed=3)
        assert [source.evaluation("held_out", at).id for at in range(5)] == [f"held_out{at}" for at in range(5)]
        with pytest.raises(ExperimentError, match="holds 5 tasks, task number 6 was asked for; ask for fewer"):
            source.evaluation("held_out", 5)

    def test_a_split_without_tasks_lists_those_there_are(self) -> None:
        with pytest.raises(ExperimentError, match="no task of split `test`; the list has: held_out, train"):
            ListedTasks(tasks=self.tasks, seed=0).evaluation("test", 0)


def test_demonstrations_come_from_their_own_split() -> None:
    found = [demonstration_task(KeyDoor, index) for index in range(3)]

    assert [task.split for task in found] == ["demonstration"] * 3
    assert [task.seed for task in found] == [10_000_000, 10_000_001, 10_000_002]


def test_an_environment_without_tasks_has_no_demonstrations() -> None:
    class Bare(Environment):
        @classmethod
        def tasks(cls, split: str, seed: int) -> Iterable[Task]:
            raise NotImplementedError("only listed tasks")

    with pytest.raises(ExperimentError, match="`Bare` has no split `demonstration`: only listed tasks"):
        demonstration_task(Bare, 0)


@pytest.mark.parametrize("text", ["seed 5..1", "seed 99_999_999_999.."])
def test_a_range_without_a_seed_is_refused(text: str) -> None:
    with pytest.raises(ExperimentError, match=r"environment\.splits\.train: .* holds no seed"):
        parse_splits({"train": text})


def test_a_generator_that_raises_or_gives_no_task_is_the_environments_failure() -> None:
    def broken(split: str, seed: int) -> Iterable[Task]:
        raise RuntimeError("no generator")

    def odd(split: str, seed: int) -> Iterable[Task]:
        return ["task"]  # type: ignore[list-item]

    for generate, told in ((broken, "no generator"), (odd, "found str")):
        source = GeneratedTasks(generate=generate, ranges=parse_splits({"train": "seed 0.."}), seed=0)
        with pytest.raises(EnvironmentFailure, match=told):
            source.training(0)


class TestTasksOfARun:
    """Whatever `tasks(split, seed)` of somebody's environment gives; the seed stands for what it may do with it."""

    def check(self, make: Callable[[str, int], Task]) -> None:
        ranges = parse_splits({"train": "seed 0..", "held_out": "seed 5_000_000.."})
        source = GeneratedTasks(generate=lambda split, seed: iter([make(split, seed)]), ranges=ranges, seed=3)
        check_tasks(source, split="held_out", evaluated=8, trained=200)

    def test_tasks_that_are_told_apart_by_id_or_seed_are_taken(self) -> None:
        """One task with another seed each time is what a bandit or a corridor has."""
        self.check(lambda split, seed: Task(id=f"{split}/{seed}", split=split, seed=seed, data={"n": seed}))
        self.check(lambda split, seed: Task(id="corridor", split=split, seed=seed))

    def test_a_task_of_another_split_is_refused(self) -> None:
        with pytest.raises(ExperimentError, match="found split `train`, asked for `held_out`"):
            self.check(lambda split, seed: Task(id=f"{seed}", seed=seed))

    def test_a_split_that_goes_on_to_the_next_seed_repeats_tasks_and_is_refused(self) -> None:
        """Whoever skips a seed gives the next one's task for it: two places, one task."""
        with pytest.raises(ExperimentError, match="two of its places hold the same task `held_out/5000001`"):
            self.check(lambda split, seed: Task(id=f"{split}/{seed | 1}", split=split, seed=seed | 1))

    def test_a_task_that_is_trained_on_is_not_held_out(self) -> None:
        with pytest.raises(ExperimentError, match="of split `held_out` is also trained on"):
            self.check(lambda split, seed: Task(id=f"room {seed % 5}", split=split, seed=seed % 5))

    def test_different_content_under_one_id_is_refused(self) -> None:
        with pytest.raises(ExperimentError, match="different family or data have the id `sum`"):
            self.check(lambda split, seed: Task(id="sum", split=split, seed=seed, data={"a": seed}))
