"""Replaying a record: its actions executed again in a fresh environment, everything observable compared."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kifu.agents import READ, WRITE
from kifu.envs import GuardedEnvironment, Task
from kifu.envs.calling.guard import Called
from kifu.envs.calling.waiting import to_end
from kifu.envs.segments import next_segment, read_state
from kifu.errors import BoundaryError, KifuError
from kifu.monitor import reader_of
from kifu.records import Event, Finish, Json, Replayed, StopReason, ToolResult, Trajectory, Turn, Verdict
from kifu.records.blobs import BlobStore
from kifu.render import Message, with_trust
from kifu.rollout import Toolbox, tool_views
from kifu.training.experiment.prepare import Prepared
from kifu.training.experiment.reading import Loaded
from kifu.training.run import reopen


def replay_trajectory(trajectory: Trajectory, prepared: Prepared, *, states: BlobStore | None = None) -> Replayed:
    """Execute the actions of one record again and compare prompt, observations, rewards, digests and verdict.

    Args:
        trajectory: the record.
        prepared: the experiment it was made in.
        states: the run's blobs, where a segment finds the state it was carried on from.
    """
    if prepared.outsider is not None:
        return Replayed(why_not="an outside agent made it, with tools of its own that only it can call again")
    if not prepared.environment.capabilities.deterministic:
        return Replayed(why_not=f"environment `{trajectory.environment.id}` declares itself not deterministic")
    try:
        task = prepared.task_of(trajectory)
    except KifuError as error:
        return Replayed(why_not=f"its task cannot be made again: {error}")
    if task is None:
        return Replayed(why_not=f"the environment no longer makes task `{trajectory.task.id}` from its seed")
    carried = None if trajectory.segment is None else trajectory.segment.carried_state
    if trajectory.segment is not None and carried is not None:
        if states is None or not states.has(carried):
            return Replayed(why_not=f"the state it was carried on from, {carried[:12]}, is not kept")
        task = next_segment(task, read_state(states.get(carried)), index=trajectory.segment.index)
    return Replayed(differences=tuple(to_end(_replay(trajectory, task, prepared))))


def replay_run(
    root: Path | str,
    trajectory: str | None = None,
    *,
    experiment: Loaded | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Replayed]:
    """Replay one record of a run, or all of them; what came of each by id.

    Args:
        root: the run folder.
        trajectory: id of one record.
        experiment: the experiment again, for runs started from Python with objects a file cannot name.
        progress: told how many are done.

    Raises:
        StorageError: no run there, or no such record.
    """
    folder, prepared = reopen(Path(root), environment=experiment, same_code=False)
    reader = reader_of(folder)
    items = reader.trajectories() if trajectory is None else iter([reader.find(trajectory)])
    found: dict[str, Replayed] = {}
    for item in items:
        found[item.id] = replay_trajectory(item, prepared, states=BlobStore(folder.blobs))
        if progress is not None:
            progress(len(found))
    return found


async def _replay(trajectory: Trajectory, task: Task, prepared: Prepared) -> list[str]:
    setting, found = prepared.setting, list[str]()
    guard = GuardedEnvironment(setting.environment, timeout_s=setting.limits.tool_seconds, isolation=setting.isolation)
    try:
        toolbox = Toolbox(guard, setting.agent.memory)
        found += await _begin(trajectory, task, guard, toolbox=toolbox, prepared=prepared)
        for turn in trajectory.turns:
            found += await _turn(turn, guard, toolbox)
        if _has_answer(trajectory):
            await guard.answered(trajectory.turns[-1].text)
        if trajectory.verdict is not None:
            found += _verdicts(trajectory.verdict, await guard.verify())
            found += _differ("final state digest", trajectory.environment.final_digest, guard.final_digest)
    except BoundaryError as failure:
        if not trajectory.outcome.infra_error:
            found.append(f"the environment failed: {failure}")
    finally:
        await guard.close()
    return found


def _has_answer(trajectory: Trajectory) -> bool:
    """Whether the last turn was told to the environment as the final answer, whole or cut."""
    last = trajectory.turns[-1] if trajectory.turns else None
    if last is None or last.results:
        return False
    if trajectory.outcome.reason is StopReason.TOKEN_LIMIT:
        is_cut = last.finish is Finish.LENGTH
        return is_cut and not last.action.sampled and last.action.parse_error is None
    return trajectory.outcome.reason is StopReason.NATURAL_END


async def _begin(
    trajectory: Trajectory, task: Task, guard: GuardedEnvironment, *, toolbox: Toolbox, prepared: Prepared
) -> list[str]:
    observation = await guard.reset(task, trajectory.environment.seed)
    found = [
        *_differ("environment", trajectory.environment.id, guard.environment_id),
        *_differ("environment version", trajectory.environment.version, guard.environment_version),
        *_differ("initial state digest", trajectory.environment.initial_digest, guard.initial_digest),
    ]
    setting = prepared.setting
    system = guard.instructions if setting.instructions is None else setting.instructions
    opening = [Message(role="system", content=system)] if system else []
    first = with_trust(observation.text, observation.trust, setting.trust)
    messages = [*opening, *setting.examples, Message(role="user", content=first)]
    pieces = setting.renderer.start(messages, tool_views(toolbox.specs))
    shown = [token for piece in pieces for token in piece.token_ids.tolist()]
    if trajectory.tapes and trajectory.tape_ids(0)[: len(shown)].tolist() != shown:
        found.append("the prompt gives other tokens than the recorded ones")
    return found


async def _turn(turn: Turn, guard: GuardedEnvironment, toolbox: Toolbox) -> list[str]:
    where, rewards, memory = f"turn {turn.index}", dict[str, float](), list[Event]()
    found = [
        *_differ(f"{where}: potential", turn.potential, guard.potential()),
        *_differ(f"{where}: state key", turn.state_key, guard.state_key()),
    ]
    async for result, called, event in toolbox.again(turn):
        memory += [] if event is None else [event]
        found += _results(where, result, called)
        for name, value in called.reply.rewards.items():
            rewards[name] = rewards.get(name, 0.0) + value
    recorded = [event for event in turn.events if event.kind in (READ, WRITE)]
    found += _differ(f"{where}: reads and writes of memory", _told(recorded), _told(memory))
    return found + _differ(f"{where}: rewards", dict(turn.rewards), rewards)


def _told(events: Sequence[Event]) -> list[tuple[str, dict[str, Json]]]:
    return [(event.kind, dict(event.detail)) for event in events]


def _results(where: str, result: ToolResult, called: Called) -> Iterator[str]:
    reply = called.reply
    yield from _differ(f"{where}: observation", result.text, reply.text)
    yield from _differ(f"{where}: error", result.error, reply.error)
    yield from _differ(f"{where}: exit status", result.exit_status, reply.exit_status)
    yield from _differ(f"{where}: trust label", result.trust, reply.trust)
    yield from _differ(f"{where}: state digest before the call", result.digest_before, called.digest_before)


def _verdicts(recorded: Verdict, again: Verdict) -> list[str]:
    names = ("success", "score", "world_state_checks", "format_checks", "safety_checks", "invalid_actions")
    return [line for name in names for line in _differ(f"verdict, {name}", _plain(recorded, name), _plain(again, name))]


def _plain(verdict: Verdict, name: str) -> object:
    value = getattr(verdict, name)
    return dict(value) if isinstance(value, Mapping) else value


def _differ(what: str, recorded: Any, again: Any) -> list[str]:  # noqa: ANN401 (any two values of one field)
    if recorded == again:
        return []
    return [f"{what}: recorded {_short(recorded)}, now {_short(again)}"]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
