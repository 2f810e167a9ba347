"""A finished rollout as text once more, from its record: what an audit needs to ask a model the same again.

The world is reset and led through the recorded answers, so that first observation and tools are its own; every answer
is compared. The policy's messages are read from their tokens.
"""

from kifu.envs import Task
from kifu.envs.calling.guard import GuardedEnvironment
from kifu.errors import EnvironmentFailure
from kifu.records import Trajectory
from kifu.render import Message, with_trust
from kifu.rollout.facts import Conversation, Prompt
from kifu.rollout.session import tool_views
from kifu.rollout.setting import Setting
from kifu.rollout.toolbox import Toolbox


async def retell(setting: Setting, trajectory: Trajectory, *, task: Task) -> Conversation:
    """The conversation of a record whose agent shows the answers of the world as they are.

    Args:
        setting: of the run.
        trajectory: the record.
        task: its task.

    Raises:
        EnvironmentFailure: the world begins or answers differently now.
    """
    guard = GuardedEnvironment(setting.environment, timeout_s=setting.limits.tool_seconds, isolation=setting.isolation)
    try:
        observation = await guard.reset(task, trajectory.environment.seed)
        system = guard.instructions if setting.instructions is None else setting.instructions
        opening = [Message(role="system", content=system)] if system else []
        first = with_trust(observation.text, observation.trust, setting.trust)
        messages = [*opening, *setting.examples, Message(role="user", content=first)]
        toolbox, prompts = Toolbox(guard, setting.agent.memory), list[Prompt]()
        for turn in trajectory.turns:
            views = tool_views(toolbox.specs)
            parsed = setting.renderer.parse(trajectory.tape_ids(turn.tape)[turn.start : turn.stop], views)
            prompts.append(Prompt(messages=len(messages), tools=views))
            messages.append(
                Message(role="assistant", content=parsed.text, reasoning=parsed.reasoning, calls=parsed.calls)
            )
            async for result, answer, _ in toolbox.again(turn):
                if answer.reply.text != result.text:
                    raise EnvironmentFailure(f"turn {turn.index} is answered differently when it is replayed")
                seen = with_trust(result.text, result.trust, setting.trust)
                messages.append(Message(role="tool", content=seen))
    finally:
        await guard.close()
    return Conversation(messages=messages, prompts=prompts, renderer=setting.renderer, trust=setting.trust)
