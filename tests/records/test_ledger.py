"""Books that close, and say which side is wrong when they do not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kifu.errors import FormatError, LedgerError
from kifu.records import Bucket, Count, Ledger


def test_a_step_written_out_by_hand_closes() -> None:
    ledger = (
        Ledger(step=3, opening=Count(attempts=2, tokens=10))
        .start(attempts=4)
        .start(tokens=40)
        .close(Bucket.TRAINED, attempts=2, tokens=20)
        .close(Bucket.DEGENERATE, attempts=1, tokens=10)
        .close(Bucket.DEGENERATE, attempts=1, tokens=5)
        .close(Bucket.INFRA_ERROR, attempts=1)
        .use(1, tokens=20)
        .use(2, tokens=8)
        .end(in_flight=Count(attempts=1, tokens=15))
    )
    ledger.check()
    assert ledger.closed[Bucket.DEGENERATE] == Count(attempts=2, tokens=15)
    assert ledger.total_closed == Count(attempts=5, tokens=35)
    assert ledger.next() == Ledger(step=4, opening=Count(attempts=1, tokens=15))


def test_a_dropped_rollout_stops_the_run_and_both_sides_are_shown() -> None:
    ledger = Ledger(step=1).start(attempts=3, tokens=30).close(Bucket.TRAINED, attempts=2, tokens=20)
    with pytest.raises(LedgerError) as caught:
        ledger.check()
    message = str(caught.value)
    assert "attempts: opening 0 + started 3 = 3, but trained 2 + in flight 0 = 2" in message
    assert "tokens: opening 0 + started 30 = 30, but trained 20 + in flight 0 = 20" in message
    with pytest.raises(LedgerError):
        ledger.next()


def test_tokens_closed_as_trained_must_have_been_used() -> None:
    ledger = Ledger(step=0).start(attempts=1, tokens=9).close(Bucket.TRAINED, attempts=1, tokens=9).use(1, tokens=8)
    with pytest.raises(LedgerError, match="9 tokens closed as trained, but updates used only 8"):
        ledger.check()


@pytest.mark.parametrize("entry", [{"attempts": -1}, {"tokens": -1}])
def test_entries_are_never_negative(entry: dict[str, int]) -> None:
    with pytest.raises(LedgerError, match="entries are counts"):
        Ledger(step=0).close(Bucket.STALE, **entry)
    with pytest.raises(LedgerError, match="entries are counts"):
        Ledger(step=0).start(**entry)


@given(
    st.lists(st.tuples(st.sampled_from(Bucket), st.integers(0, 9), st.integers(0, 99)), max_size=12), st.integers(0, 9)
)
def test_what_is_started_and_closed_in_any_order_closes(moves: list[tuple[Bucket, int, int]], left: int) -> None:
    ledger = Ledger(step=0, opening=Count(attempts=left, tokens=2 * left))
    for bucket, attempts, tokens in moves:
        ledger = ledger.close(bucket, attempts=attempts, tokens=tokens).start(attempts=attempts, tokens=tokens)
    ledger = ledger.end(in_flight=Count(attempts=left, tokens=2 * left))
    ledger.check()
    assert sum(count.attempts for count in ledger.closed.values()) == sum(attempts for _, attempts, _ in moves)
    assert Ledger.from_json(json.loads(json.dumps(ledger.to_json()))) == ledger


def test_an_unknown_bucket_is_a_newer_format() -> None:
    value = Ledger(step=0).to_json() | {"closed": {"vanished": [1, 1]}}
    with pytest.raises(FormatError, match="vanished"):
        Ledger.from_json(value)


def test_buckets_are_those_of_the_design() -> None:
    assert {bucket.value for bucket in Bucket} == {
        "trained",
        "degenerate",
        "stale",
        "truncated_excluded",
        "infra_error",
        "interrupted",
        "quarantined",
        "duplicate",
        "demonstration_only",
        "held_back",
        "evaluation",
    }
