"""Double entry of the loop: counted at the source, closed by the step, and a limit on failures."""

import threading
from collections.abc import Collection, Iterable, Mapping

from kifu.errors import EngineFailure, FailureRateError, LedgerError
from kifu.records import StopReason, Trajectory
from kifu.records.branches import occurrences
from kifu.records.ledger import Bucket, Count, Ledger
from kifu.training.update.assemble import Assembled

_SHOWN = 500
"""Characters of the first failure that the message repeats; its record holds more."""


class Books:
    """Counts attempts and sampled tokens at their source, for the ledger: what was started, what is still held.

    Rollouts are accepted on the event loop while a step closes on another thread, so both figures of a closing are
    taken at once.
    """

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._started = Count()
        self._carried = Count()
        self._guard = threading.Lock()

    def begin(self, attempt: str) -> None:
        """An attempt starts, or goes on after its process died; its tokens are booked when it is accepted."""
        with self._guard:
            self._open[attempt] = 0
            self._enter(Count(attempts=1))

    def accepted(self, trajectory: Trajectory) -> None:
        """An attempt is durable."""
        with self._guard:
            self._open[trajectory.id] = trajectory.sampled_tokens
            self._enter(Count(tokens=trajectory.sampled_tokens))

    def close(self, attempts: Iterable[str]) -> tuple[Count, Count]:
        """Attempts leave the flight into a bucket: what was started since the last closing, and what is still held.

        Raises:
            LedgerError: an attempt that is not in flight.
        """
        with self._guard:
            for attempt in attempts:
                if self._open.pop(attempt, None) is None:
                    raise LedgerError(
                        f"{attempt} was never started or is closed already; the run stops so that its record stays true"
                    )
            started, self._started = self._started, Count()
            return started, self._held() + self._carried

    def settle(self, closing: Count) -> None:
        """Go on from a closing figure on record, of a process that died.

        What is held beyond it counts as started afterwards; what is missing comes later without being started again:
        the attempts of the next steps that were under way, run again or taken from the record under their old ids.
        """
        with self._guard:
            held = self._held()
            self._started = Count(
                attempts=max(held.attempts - closing.attempts, 0), tokens=max(held.tokens - closing.tokens, 0)
            )
            self._carried = Count(
                attempts=max(closing.attempts - held.attempts, 0), tokens=max(closing.tokens - held.tokens, 0)
            )

    def _held(self) -> Count:
        return Count(attempts=len(self._open), tokens=sum(self._open.values()))

    def _enter(self, count: Count) -> None:
        """Book what is new; what was carried over is not."""
        attempts, tokens = min(count.attempts, self._carried.attempts), min(count.tokens, self._carried.tokens)
        self._carried = Count(attempts=self._carried.attempts - attempts, tokens=self._carried.tokens - tokens)
        self._started += Count(attempts=count.attempts - attempts, tokens=count.tokens - tokens)


def close_step(
    ledger: Ledger,
    books: Books,
    *,
    assembled: Assembled,
    trajectories: Mapping[str, Trajectory],
    epochs: int,
    uses: Mapping[str, int] | None = None,
) -> Ledger:
    """Enter what a step started, what became of its trajectories, and how often those from elsewhere were used.

    Args:
        ledger: opened.
        books: hold what is in flight.
        assembled: the update.
        trajectories: by id, at least those with a bucket.
        epochs: how often the update uses each row.
        uses: how often a trajectory was used before this step, where it was.

    Raises:
        LedgerError: the two sides differ.
    """
    started, in_flight = books.close(assembled.buckets)
    ledger = ledger.start(attempts=started.attempts, tokens=started.tokens)
    for name, bucket in assembled.buckets.items():
        ledger = ledger.close(bucket, attempts=1, tokens=trajectories[name].sampled_tokens)
    trained = [
        trajectories[name]
        for name, bucket in assembled.buckets.items()
        if bucket is Bucket.TRAINED
        for _ in range(assembled.times.get(name, 1))
    ]
    for times, tokens in occurrences(trained, trajectories).items():  # branches share turns, copies are counted
        ledger = ledger.use(times * epochs, tokens=tokens)
    for name in {row.trajectory for row in assembled.rows} & set(assembled.borrowed.records):
        tokens = assembled.borrowed.records[name].sampled_tokens
        used = epochs * assembled.times.get(name, 1)
        ledger = ledger.use((uses or {}).get(name, 0) + used, tokens=tokens)
    ledger = ledger.end(in_flight=in_flight)
    ledger.check()
    return ledger


def close_run(ledger: Ledger, books: Books) -> Ledger:
    """The ledger after the last step, with whatever is still held.

    Raises:
        LedgerError: the two sides differ.
    """
    started, held = books.close(())
    ledger = ledger.start(attempts=started.attempts, tokens=started.tokens).end(in_flight=held)
    ledger.check()
    return ledger


def limit_failures(trajectories: Collection[Trajectory], *, limit: float, step: int) -> None:
    """Stop a run whose environment, verifier or engine fails too often.

    Raises:
        FailureRateError: more than ``limit`` of the attempts ended in an infrastructure error.
        EngineFailure: so they did, and most of those in the engine.
    """
    failed = [item for item in trajectories if item.outcome.infra_error]
    if len(failed) > limit * len(trajectories):
        of_engine = [item for item in failed if item.outcome.reason is StopReason.ENGINE_ERROR]
        is_engine = 2 * len(of_engine) > len(failed)
        first = of_engine[0] if is_engine else failed[0]
        raise (EngineFailure if is_engine else FailureRateError)(
            f"step {step}: {len(failed)} of {len(trajectories)} attempts ended in an infrastructure error, "
            f"environment.failure_rate_limit is {limit}. First: {first.id}: {first.outcome.reason}: "
            f"{first.outcome.detail[:_SHOWN].rstrip('.')}. They are recorded as errors, not as failures of the policy. "
            "Mend the cause, then start anew or raise the limit."
        )
