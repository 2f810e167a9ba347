"""Success replay: what the buffer keeps and gives, and a run whose every replay follows from its record."""

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from kifu.algorithms import build_algorithm
from kifu.credit import SuccessReplay
from kifu.credit.reading import RewardRules
from kifu.errors import InterruptedRun
from kifu.records import Group, Purpose, StopReason, TaskRef, Trajectory, as_floats
from kifu.records.ledger import Bucket, Ledger
from kifu.records.plan import PlanLine, read_plan
from kifu.records.planned import check_plan
from kifu.records.reader import RunReader
from kifu.records.weights import WeightStore
from kifu.training.experiment.reading import Loaded
from kifu.training.inspection.audit import audit
from kifu.training.inspection.explain import explain_step
from kifu.training.observe import Observer
from kifu.training.run import resume, train
from kifu.training.update.assemble import assemble
from kifu.training.update.borrowed import Borrowed, Scored
from kifu.training.update.success_buffer import SuccessBuffer

Make = Callable[..., Trajectory]
Load = Callable[..., Loaded]


def at_step(record: Trajectory, step: int) -> Trajectory:
    return replace(record, key=replace(record.key, step=step))


def group_of(*members: Trajectory) -> Group:
    return Group(task=TaskRef(id=members[0].task.id), members=members)


@pytest.fixture
def failed(make_record: Make) -> Callable[..., Group]:
    """Three failures of step 9."""

    def make(task: str = "t", group: int = 0) -> Group:
        return group_of(
            *(at_step(make_record([2], reward=0.0, member=at, task=task, group=group), 9) for at in range(3))
        )

    return make


def buffer(**rule: Any) -> SuccessBuffer:  # noqa: ANN401 (fields of the rule)
    return SuccessBuffer(SuccessReplay(**rule), rules=RewardRules(), seed=3)


class TestBuffer:
    def test_the_oldest_success_leaves_first_and_failures_never_enter(self, make_record: Make) -> None:
        kept = buffer(capacity=2)
        kept.remember(
            at_step(make_record([1], reward=reward), step) for step, reward in enumerate([1.0, 0.1, 1.0, 0.5])
        )

        assert kept.kept("t") == ("train/s0/t00002/g0000/m000/a0", "train/s0/t00003/g0000/m000/a0")
        assert kept.kept("another task") == ()

    def test_order_of_arrival_does_not_matter(self, make_record: Make) -> None:
        records = [at_step(make_record([1], member=member), step) for step in range(3) for member in range(2)]
        one, two = buffer(capacity=3), buffer(capacity=3)
        one.remember(records)
        two.remember(reversed(records))

        assert one.kept("t") == two.kept("t") == tuple(record.id for record in records[3:])

    def test_what_cannot_be_trained_is_not_kept(self, make_record: Make) -> None:
        kept = buffer()
        kept.remember(
            [
                make_record([1], reward=None, reason=StopReason.ENV_ERROR),
                make_record([1], purpose=Purpose.DEMONSTRATION),
                make_record([1], reason=StopReason.TURN_LIMIT),
            ]
        )

        assert kept.kept("t") == ()

    def test_one_success_takes_the_place_of_the_first_failure(self, make_record: Make, failed: Any) -> None:  # noqa: ANN401
        success = make_record([2])
        kept = buffer()
        kept.remember([success])

        [found], borrowed = kept.replay([failed()], step=9)

        assert [member.id for member in found.members] == [success.id, *(item.id for item in failed().members[1:])]
        assert borrowed.replaced == {failed().members[0].id: success.id}
        assert [item.id for item in borrowed.set_aside] == [failed().members[0].id]

    def test_nothing_happens_without_a_success_at_this_task_or_in_a_group_that_compares(
        self,
        make_record: Make,
        failed: Any,  # noqa: ANN401
    ) -> None:
        kept = buffer()
        kept.remember([make_record([2])])
        mixed = group_of(
            *(at_step(make_record([1], reward=value, member=at), 9) for at, value in enumerate([0.0, 1.0]))
        )

        found, borrowed = kept.replay([failed("u"), mixed], step=9)

        assert [member.key.step for group in found for member in group.members] == [9] * 5
        assert not borrowed.replaced

    def test_a_record_enters_a_step_once(self, make_record: Make, failed: Any) -> None:  # noqa: ANN401
        kept = buffer()
        kept.remember([make_record([2]), at_step(make_record([2]), 1)])

        _, borrowed = kept.replay([failed(group=at) for at in range(3)], step=9)

        assert len(set(borrowed.replaced.values())) == len(borrowed.replaced) == 2

    def test_draws_are_uniform_and_depend_on_nothing_but_seed_step_and_group(
        self,
        make_record: Make,
        failed: Any,  # noqa: ANN401
    ) -> None:
        kept = buffer()
        kept.remember(at_step(make_record([2]), step) for step in range(4))

        drawn = [kept.replay([failed()], step=step)[1].replaced for step in range(400)]

        assert drawn == [kept.replay([failed()], step=step)[1].replaced for step in range(400)]
        counts = Counter(next(iter(item.values())) for item in drawn)
        assert len(counts) == 4
        assert min(counts.values()) > 70


class TestAssembling:
    def put(self, make_record: Make, failed: Any, scored: Scored | None = None) -> tuple[Trajectory, Any]:  # noqa: ANN401
        success, group = make_record([2, 1], version=0), failed()
        found = assemble(
            [group_of(success, *group.members[1:])],
            algorithm=build_algorithm("agentic_replay_po"),
            rules=RewardRules(),
            version=5,
            max_age=5,
            borrowed=Borrowed(
                records={success.id: success},
                replaced={group.members[0].id: success.id},
                set_aside=group.members[:1],
            ),
            scored=scored,
        )
        return success, found

    def test_the_replaced_rollout_is_held_back_and_the_replayed_record_has_no_bucket_here(
        self,
        make_record: Make,
        failed: Any,  # noqa: ANN401
    ) -> None:
        success, found = self.put(make_record, failed)

        first, *others = failed().members
        assert found.buckets == {first.id: Bucket.HELD_BACK, **{item.id: Bucket.TRAINED for item in others}}
        assert found.why[first.id] == f"{success.id} stands in its place"
        assert [row.trajectory for row in found.rows] == [success.id, *(item.id for item in others)]
        assert found.rows[0].advantages.tolist() == pytest.approx([2 / 3 / (3**-0.5 + 1e-6)] * 3)

    def test_no_age_makes_a_replayed_record_stale(self, make_record: Make, failed: Any) -> None:  # noqa: ANN401
        old = make_record([2], version=0)
        found = assemble(
            [group_of(old, *failed().members[1:])],
            algorithm=build_algorithm("agentic_replay_po"),
            rules=RewardRules(),
            version=5,
            max_age=0,
            borrowed=Borrowed(records={old.id: old}),
        )

        assert set(found.buckets.values()) == {Bucket.STALE}, "its companions are too old, so it stands alone"
        assert old.id not in found.why

    def test_without_correction_the_ratio_is_taken_over_the_present_policy(
        self,
        make_record: Make,
        failed: Any,  # noqa: ANN401
    ) -> None:
        name = make_record([2, 1]).id
        success, found = self.put(make_record, failed, Scored(present={name: as_floats([-1.0, -2.0, -3.0])}))
        _, plain = self.put(make_record, failed)

        assert success.id == name
        assert found.rows[0].behaviour_logprobs.tolist() == [-1.0, -2.0, -3.0]
        assert plain.rows[0].behaviour_logprobs.tolist() == [-0.5, -0.5, -0.5]
        assert (found.rescored, plain.rescored) == ({name}, frozenset())


def sparse(load: Load, *overrides: str, correction: str = "none") -> Loaded:
    """Four tasks that come again every step, four attempts at each, few successes."""
    return load(
        f"credit={{ algorithm = 'agentic_replay_po', options = {{ correction = '{correction}', capacity = 2 }} }}",
        "environment.on_truncation=terminal",
        "environment.splits.train='seed 0..3'",
        "update.group_size=4",
        "update.prompts_per_step=4",
        "update.steps=12",
        "update.patience=50",
        "update.optimizer.learning_rate=0.01",
        *overrides,
    )


def digests(run: Path) -> dict[int, str]:
    store = WeightStore(run / "weights", read_only=True)
    found = {version.version: version.digest for version in store.versions}
    store.close()
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tmp_path_factory.mktemp(name) / "run" for name in ("none", "ratio")}


@pytest.fixture(params=["none", "ratio"])
def run(request: pytest.FixtureRequest, load: Load, finished: dict[str, Path]) -> tuple[str, Path]:
    """A finished run, made once, and how it corrects."""
    correction = str(request.param)
    if not finished[correction].exists():
        train(sparse(load, correction=correction), out=finished[correction], quiet=True)
    return correction, finished[correction]


def test_every_replay_follows_from_the_records_alone(run: tuple[str, Path]) -> None:
    """The rule in plain loops: a queue of two successes per task, the gate, and who stood first."""
    records = {item.id: item for item in RunReader(run[1]).trajectories() if item.key.purpose is Purpose.TRAIN}
    kept: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=2))
    replays = 0
    for line in read_plan(run[1])[:-1]:
        groups: dict[int, list[Trajectory]] = defaultdict(list)
        for item in sorted(records.values(), key=lambda item: item.key):
            if item.key.step == line.step:
                groups[item.key.group].append(item)
        expected = set()
        for members in groups.values():
            rewards = [float(item.reward or 0.0) for item in members]
            if stdev(rewards) < 0.05 and fmean(rewards) < 0.2 and kept[members[0].task.id]:
                expected.add(members[0].id)
                assert line.replaced[members[0].id] in kept[members[0].task.id]
                assert line.buckets[members[0].id] is Bucket.HELD_BACK
        assert set(line.replaced) == expected
        for members in groups.values():
            kept[members[0].task.id].extend(item.id for item in members if (item.reward or 0.0) > 0.1)
        replays += len(expected)
    assert replays > 5


def test_rows_of_replayed_records_say_how_often_they_were_used_and_what_the_ratio_is_taken_over(
    run: tuple[str, Path],
) -> None:
    correction, folder = run
    uses: Counter[str] = Counter()
    for line in read_plan(folder):
        for row in line.rows:
            uses[row.trajectory] += 1
            assert row.times_used == uses[row.trajectory]
            is_replayed = row.trajectory in line.replaced.values()
            assert len(row.present) == (row.tokens if is_replayed and correction == "none" else 0)
    assert max(uses.values()) > 2


def test_without_correction_every_ratio_is_one_and_with_it_those_of_replayed_tokens_are_not(
    run: tuple[str, Path],
) -> None:
    correction, folder = run
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    errors = [line["ratio_error"] for line in lines if line["replayed"]]

    assert len(errors) > 3
    assert (max(errors) < 1e-5) == (correction == "none")


def test_an_audit_recomputes_a_run_that_replays(run: tuple[str, Path]) -> None:
    report = audit(run[1], scores=True)

    assert (report.problems, report.ledger_closed, report.rebuilt) == ((), True, report.records)


def test_a_run_that_was_interrupted_replays_the_same(
    run: tuple[str, Path], load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after step 9; the last checkpoint is at 8, so the buffer is filled from the record and 8 retrained."""
    inner = Observer.end

    def stop(observer: Observer, seen: Any) -> None:  # noqa: ANN401 (passed on)
        inner(observer, seen)
        if seen.step == 9:
            raise KeyboardInterrupt

    monkeypatch.setattr(Observer, "end", stop)
    with pytest.raises((KeyboardInterrupt, InterruptedRun)):
        train(sparse(load, correction=run[0]), out=tmp_path / "run", quiet=True)
    monkeypatch.setattr(Observer, "end", inner)
    resume(tmp_path / "run", quiet=True)

    assert digests(tmp_path / "run") == digests(run[1])
    assert [(line.replaced, line.rows) for line in read_plan(tmp_path / "run")] == [
        (line.replaced, line.rows) for line in read_plan(run[1])
    ]


def test_a_replay_that_no_record_allows_is_a_problem(make_record: Make) -> None:
    """A stand-in of another task, of no earlier step, or without a record."""
    rollout, other = at_step(make_record([1]), 1), make_record([1], task="u")
    records = {item.id: item for item in (rollout, other)}

    def problems(earlier: dict[str, Bucket], stand_in: str) -> list[str]:
        lines = [
            PlanLine(step=0, version=0, micro_batches=(), rows=(), buckets=earlier, ledger=None),
            PlanLine(
                step=1,
                version=0,
                micro_batches=(),
                rows=(),
                buckets={rollout.id: Bucket.HELD_BACK},
                replaced={rollout.id: stand_in},
                ledger=Ledger(step=1).start(attempts=1, tokens=1).close(Bucket.HELD_BACK, attempts=1, tokens=1),
            ),
        ]
        return [problem.what for problem in check_plan(lines, records)[0]]

    same = replace(other, task=rollout.task)
    assert "instead of `t`" in problems({other.id: Bucket.TRAINED}, other.id)[0]
    assert "one of the two records is missing" in problems({}, "train/s0/t00000/g0009/m000/a0")[0]
    records[other.id] = same
    assert problems({other.id: Bucket.TRAINED}, other.id) == []
    assert "no earlier step closed it" in problems({}, other.id)[0]


def test_a_step_with_a_replay_is_explained_as_it_was_planned(run: tuple[str, Path]) -> None:
    line = next(line for line in read_plan(run[1]) if line.replaced)

    found = explain_step(run[1], line.step)

    assert "the run's plan holds these numbers" in found["notes"]
    shown = {item["id"] for group in found["groups"] for item in group["trajectories"]}
    assert set(line.replaced.values()) <= shown
    assert not set(line.replaced) & shown
