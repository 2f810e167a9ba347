"""Double entry of the loop: a rollout that is dropped, counted twice or raced past is noticed."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from kifu.algorithms import build_algorithm
from kifu.credit.reading import RewardRules
from kifu.errors import EngineFailure, FailureRateError, LedgerError
from kifu.records import Group, StopReason, TaskRef, Trajectory
from kifu.records.ledger import Bucket, Count, Ledger
from kifu.training.collection.books import Books, close_step, limit_failures
from kifu.training.update.assemble import assemble

Make = Callable[..., Trajectory]


def run(books: Books, *members: Trajectory) -> None:
    for member in members:
        books.begin(member.id)
        books.accepted(member)


def close(books: Books, ledger: Ledger, members: list[Trajectory], *, epochs: int = 1) -> Ledger:
    assembled = assemble(
        [Group(task=TaskRef(id="t"), members=tuple(members))],
        algorithm=build_algorithm("grpo"),
        rules=RewardRules(),
        version=0,
        max_age=0,
    )
    return close_step(
        ledger, books, assembled=assembled, trajectories={item.id: item for item in members}, epochs=epochs
    )


def test_attempts_and_tokens_close_into_their_buckets(make_record: Make) -> None:
    members = [
        make_record([2], reward=1.0),
        make_record([3], reward=0.0, member=1),
        make_record([5], reward=None, reason=StopReason.ENV_ERROR, member=2),
    ]
    books = Books()
    run(books, *members)
    books.begin("ahead")

    found = close(books, Ledger(step=0), members, epochs=4)

    assert found.closed == {
        Bucket.TRAINED: Count(attempts=2, tokens=5),
        Bucket.INFRA_ERROR: Count(attempts=1, tokens=5),
    }
    assert found.started == Count(attempts=4, tokens=10)
    assert found.closing == Count(attempts=1, tokens=0)
    assert found.times_used == {4: 5}
    assert found.next().opening == Count(attempts=1, tokens=0)


def test_a_copied_group_counts_every_copy_in_every_epoch_as_a_use(make_record: Make) -> None:
    """Two groups, one without signal: the other stands twice, two epochs use its five tokens four times."""
    members = [
        make_record([2], reward=1.0),
        make_record([3], reward=0.0, member=1),
        make_record([4], reward=1.0, group=1, task="u"),
        make_record([1], reward=1.0, group=1, member=1, task="u"),
    ]
    books = Books()
    run(books, *members)
    assembled = assemble(
        [Group(task=pair[0].task, members=tuple(pair)) for pair in (members[:2], members[2:])],
        algorithm=build_algorithm("dupo"),
        rules=RewardRules(),
        version=0,
        max_age=0,
    )

    found = close_step(
        Ledger(step=0), books, assembled=assembled, trajectories={item.id: item for item in members}, epochs=2
    )

    assert found.times_used == {4: 5}
    assert found.closed == {
        Bucket.TRAINED: Count(attempts=2, tokens=5),
        Bucket.DEGENERATE: Count(attempts=2, tokens=5),
    }


def test_a_rollout_that_is_dropped_stops_the_run(make_record: Make) -> None:
    members = [make_record([2], reward=float(at), member=at) for at in range(3)]
    books = Books()
    run(books, *members)
    ledger = close(books, Ledger(step=0), members[:2])

    assert ledger.closing == Count(attempts=1, tokens=2), "held, not lost"
    dropped = replace(ledger, closing=Count())
    with pytest.raises(LedgerError, match=r"opening 0 \+ started 3 = 3, but trained 2 \+ in flight 0 = 2"):
        dropped.next()


def test_an_attempt_nobody_started_cannot_be_closed(make_record: Make) -> None:
    members = [make_record([2], reward=float(at), member=at) for at in range(2)]
    books = Books()
    run(books, members[0])

    with pytest.raises(LedgerError, match="was never started or is closed already"):
        close(books, Ledger(step=0), members)


def test_tokens_that_change_after_acceptance_do_not_close(make_record: Make) -> None:
    members = [make_record([2], reward=float(at), member=at) for at in range(2)]
    books = Books()
    run(books, *members)

    with pytest.raises(LedgerError, match="tokens: opening 0"):
        close(books, Ledger(step=0), [members[0], make_record([7], reward=1.0, member=1)])


class TestSettling:
    """A process died with rollouts in flight; the next one goes on from the figures on record."""

    def test_attempts_under_way_are_not_started_twice(self, make_record: Make) -> None:
        members = [make_record([2], reward=float(at), member=at) for at in range(2)]
        books = Books()
        books.settle(Count(attempts=2, tokens=2))
        run(books, *members)

        found = close(books, replace(Ledger(step=1), opening=Count(attempts=2, tokens=2)), members)

        assert found.started == Count(attempts=0, tokens=2)
        assert found.closing == Count()

    def test_what_is_held_beyond_the_record_is_started_later(self, make_record: Make) -> None:
        members = [make_record([2], reward=float(at), member=at) for at in range(2)]
        books = Books()
        run(books, *members)
        books.settle(Count(attempts=2, tokens=2))

        found = close(books, replace(Ledger(step=1), opening=Count(attempts=2, tokens=2)), members)

        assert found.started == Count(attempts=0, tokens=2)

    def test_what_never_comes_back_stays_in_flight(self, make_record: Make) -> None:
        members = [make_record([2], reward=float(at), member=at) for at in range(2)]
        books = Books()
        books.settle(Count(attempts=3, tokens=0))
        run(books, *members)

        found = close(books, replace(Ledger(step=1), opening=Count(attempts=3)), members)

        assert found.closing == Count(attempts=1)


def test_rollouts_accepted_while_a_step_closes_are_in_both_figures_or_in_neither(make_record: Make) -> None:
    books, ready = Books(), threading.Event()
    ahead = [make_record([3], member=at, group=1) for at in range(400)]

    def collect() -> None:
        ready.set()
        run(books, *ahead)

    thread = threading.Thread(target=collect)
    thread.start()
    ready.wait()
    opening, total = Count(), Count()
    for _ in range(200):
        started, held = books.close(())
        total = total + started
        assert total == held
    thread.join()
    started, held = books.close(())
    assert opening + total + started == held == Count(attempts=400, tokens=1200)


def test_a_run_whose_engine_is_what_fails_says_so(make_record: Make) -> None:
    """Three of ten attempts: two in the engine, one in the environment."""
    reasons = [StopReason.ENV_ERROR, StopReason.ENGINE_ERROR, StopReason.ENGINE_ERROR]
    failed = [make_record([1], member=at, reward=None, reason=reason) for at, reason in enumerate(reasons)]
    members = [*failed, *(make_record([1], member=at) for at in range(3, 10))]

    with pytest.raises(EngineFailure, match=f"3 of 10.*{failed[1].id}: engine_error") as raised:
        limit_failures(members, limit=0.2, step=5)

    assert raised.value.exit_code == 5


@pytest.mark.parametrize(("failed", "stops"), [(0, False), (2, False), (3, True), (10, True)])
def test_a_run_stops_when_more_than_its_share_of_attempts_fails(make_record: Make, failed: int, stops: bool) -> None:
    members = [
        make_record(
            [1],
            member=at,
            reward=None if at < failed else 1.0,
            reason=StopReason.ENV_ERROR if at < failed else StopReason.SUCCESS,
        )
        for at in range(10)
    ]
    if not stops:
        limit_failures(members, limit=0.2, step=5)
        return
    with pytest.raises(FailureRateError) as raised:
        limit_failures(members, limit=0.2, step=5)
    assert raised.value.exit_code == 3
    for part in (f"step 5: {failed} of 10", "failure_rate_limit is 0.2", members[0].id, "env_error"):
        assert part in str(raised.value)
