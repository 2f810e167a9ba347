"""What the cases work with: calls of an agent, and the comparison of a record with what was sampled."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kifu.testing.capture_contract import CaptureCheckError, CaptureSubject, Kept, Row, Session
from kifu.testing.capture_model import FakeModel, Written, logprobs_of
from kifu.testing.capture_wire import Answer, ask

Message = dict[str, Any]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
TOLERANCE = 1e-4


def call_of(number: int) -> str:
    """A tool call as the model writes it, spelled as no serializer would."""
    return f'<tool_call>\n{{"name":"add",  "arguments": {{"a" :{number}}}}}\n</tool_call>'


def user(text: str) -> Message:
    """A message of the user."""
    return {"role": "user", "content": text}


class Bench:
    """One case at work.

    Args:
        subject: the gateway.
        model: its upstream.
        url: the model's address.
        mark: of the case; it stands in the first message, so that the model knows its lines.
    """

    def __init__(self, subject: CaptureSubject, model: FakeModel, *, url: str, mark: str) -> None:
        self.subject = subject
        self.model = model
        self.url = url
        self.mark = mark
        self._sessions = 0

    async def open(self, task: str = "") -> Session:
        """Begin a session."""
        self._sessions += 1
        return await self.subject.open(task or f"{self.mark}-{self._sessions}")

    async def restart(self) -> None:
        """Kill the gateway and start it again."""
        await self.subject.stop(kill=True)
        await self.subject.start(self.model, self.url)

    async def post(self, session: Session, path: str, body: Mapping[str, Any] | bytes, **how: Any) -> Answer:  # noqa: ANN401 - as `ask` takes it
        """Ask as the agent."""
        headers = {"authorization": f"Bearer {session.key}", **how.pop("headers", {})}
        return await ask(f"{session.base_url}{path}", body=body, headers=headers, **how)

    async def chat(self, session: Session, messages: Sequence[Message], **fields: Any) -> Answer:  # noqa: ANN401 - fields
        """Make one chat call; ``how`` is handed to the client."""
        how = fields.pop("how", {})
        body = {"model": session.model, "messages": list(messages), **fields}
        return await self.post(session, "/chat/completions", body, **how)

    async def said(self, session: Session, messages: Sequence[Message], **fields: Any) -> Message:  # noqa: ANN401 - fields
        """Make one chat call that must be answered; gives the message.

        Raises:
            CaptureCheckError: it was not.
        """
        answer = await self.chat(session, messages, **fields)
        found = answered(answer)
        message: Message = found["choices"][0]["message"]
        return message

    def prompt(self, text: str = "") -> Message:
        """The first message of the case."""
        return user(f"{self.mark} {text}".strip())

    def all_once(self, kept: Kept) -> str:
        """Check the record against everything that was sampled under the case's mark."""
        return all_once(kept, self.model.of(self.mark))


def answered(answer: Answer) -> Any:  # noqa: ANN401 - JSON
    """The body of an answer that must be good.

    Raises:
        CaptureCheckError: it is not.
    """
    found = answer.json()
    must(answer.status == 200 and isinstance(found, dict), f"a plain call got {answer.shown}")
    return found


def refused(answer: Answer, what: str) -> str:
    """Check that an answer is a refusal.

    Raises:
        CaptureCheckError: it is not one.
    """
    must(400 <= answer.status < 500, f"{what}: expected a refusal, got {answer.shown}")
    return f"refused: {answer.shown}"


def must(holds: bool, what: str) -> None:
    """Raise `CaptureCheckError` unless ``holds``."""
    if not holds:
        raise CaptureCheckError(what)


def all_once(kept: Kept, written: Sequence[Written]) -> str:
    """Check that every sampled token is trained exactly once, under the ids it was sampled with, and nothing else is.

    Raises:
        CaptureCheckError: saying what is lost, doubled or misplaced.
    """
    wanted = Counter((item.prompt, item.ids) for item in written)
    left = [[token.trained for token in row] for row in kept.rows]
    for (prompt, ids), count in wanted.items():
        found = sum(_take(row, trained, prompt=prompt, ids=ids) for row, trained in zip(kept.rows, left, strict=True))
        must(
            found >= count,
            f"{count} turns of {len(ids)} tokens were sampled under a prompt of {len(prompt)}, {found} are trained so",
        )
        must(found == count, f"{count} turns were sampled under one prompt, {found} are trained")
    extra = sum(sum(trained) for trained in left)
    must(not extra, f"{extra} tokens are trained that were not sampled in that place")
    total = sum(len(item.ids) for item in written)
    return f"{total} sampled tokens of {len(written)} turns, each trained once under its own prefix"


def _take(row: Row, trained: list[bool], *, prompt: Sequence[int], ids: Sequence[int]) -> int:
    """Whether a row trains this turn under this prompt; takes the tokens off what is left to explain."""
    start, stop = len(prompt), len(prompt) + len(ids)
    here = tuple(token.id for token in row[:stop])
    if here != (*prompt, *ids) or not all(trained[start:stop]):
        return 0
    trained[start:stop] = [False] * len(ids)
    return 1


def logprobs_hold(kept: Kept) -> str:
    """Check every trained token's logprob against the model's own under the row's prefix.

    Raises:
        CaptureCheckError: one differs.
    """
    worst, count = 0.0, 0
    for row in kept.rows:
        ids = [token.id for token in row]
        for at, value in enumerate(logprobs_of((), ids)):
            if row[at].trained:
                recorded = row[at].logprob
                must(recorded is not None, f"a trained token (id {ids[at]}) has no logprob")
                assert recorded is not None
                worst, count = max(worst, abs(recorded - value)), count + 1
                must(worst < TOLERANCE, f"logprob {recorded:.4f} recorded, {value:.4f} under the row's own prefix")
    must(count > 0, "nothing is trained")
    return f"{count} logprobs recomputed, largest difference {worst:.1e} nats"
