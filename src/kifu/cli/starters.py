"""What ``kifu init`` writes."""

from collections.abc import Mapping

_WORLD = '''"""Three doors, one prize; the sign at the entrance names the right one."""

import random

import kifu

DOORS = ("red", "green", "blue")


class Doors(kifu.Environment):
    """Read the sign, then open the door it names."""

    id = "NAME"
    version = "1"
    capabilities = kifu.Capabilities(snapshot=kifu.SnapshotKind.STATE)
    instructions = "Find the prize. Use one tool per message."
    vocabulary = ("entrance", *DOORS, "prize", "nothing")
    facts = {
        "initial states": "one of three doors holds the prize, drawn from the seed",
        "observations": "the entrance; what the sign says; what stands behind a door",
        "hidden": "the door with the prize, until the sign is read",
        "actions": "read_sign, or open one of the three doors",
        "reset, versions, seeds": "the seed draws the door",
        "success": "the door with the prize is open",
        "failure": "another door is open, or the turns are used up",
        "end": "a door is opened",
        "reward": "1 for the prize, at the end",
        "irreversible": "opening a door",
    }

    def reset(self, task: kifu.Task, seed: int) -> str:
        """Hide the prize."""
        self.prize = random.Random(seed).choice(DOORS)
        self.opened = ""
        return "entrance"

    @kifu.tool
    def read_sign(self) -> str:
        """Read the sign at the entrance."""
        return self.prize

    @kifu.tool
    def open_red(self) -> kifu.Reply:
        """Open the red door."""
        return self._open("red")

    @kifu.tool
    def open_green(self) -> kifu.Reply:
        """Open the green door."""
        return self._open("green")

    @kifu.tool
    def open_blue(self) -> kifu.Reply:
        """Open the blue door."""
        return self._open("blue")

    def _open(self, door: str) -> kifu.Reply:
        self.opened = door
        found = door == self.prize
        stop = kifu.StopReason.SUCCESS if found else kifu.StopReason.FAILURE
        return kifu.Reply(text="prize" if found else "nothing", stop=stop)

    def invalid(self, error: str) -> kifu.Reply:
        """A message that is no call of the tools shows nothing and costs a turn."""
        return kifu.Reply(text="nothing", error=error)

    def verify(self) -> kifu.Verdict:
        """Look whether the prize was found."""
        found = self.opened == self.prize
        return kifu.Verdict(success=found, world_state_checks={"prize found": found}, verifier="NAME/1")

    def snapshot(self) -> dict[str, str]:
        """The whole state."""
        return {"prize": self.prize, "opened": self.opened}

    def restore(self, ref: dict[str, str]) -> None:
        """Take a state back."""
        self.prize, self.opened = ref["prize"], ref["opened"]

    @classmethod
    def demonstrate(cls, task: kifu.Task, *, seed: int = 0, noise: float = 0.0) -> tuple[kifu.ToolCall, ...]:
        """Read the sign, open that door; with noise sometimes any door."""
        chance = random.Random(seed)
        prize = chance.choice(DOORS)  # the first draw is the world's own
        door = chance.choice(DOORS) if chance.random() < noise else prize
        return (kifu.ToolCall(name="read_sign"), kifu.ToolCall(name=f"open_{door}"))
'''

_TOOL = """# A small recurrent policy learns NAME.py in seconds. `kifu check NAME.toml`, then `kifu train NAME.toml`.
kifu = 1

[environment]
name = "NAME.py:Doors"
decision_model = "tool call, POMDP"
task_limits = { turns = 4 }

[policy]                                  # for a language model: model = "smollm2-135m", and remove the next line
engine = "recurrent"

[credit]
algorithm = "grpo"
gamma = 1.0                               # a reward counts alike however many turns it takes

[update]
steps = 30
prompts_per_step = 8
group_size = 8
patience = 30                             # steps without a group to compare before the run stops, with advice
optimizer = { learning_rate = 1e-2 }

[evaluation]
tasks = 32

[profiles.check.update]                   # the whole pipeline in a second or two; never a result
steps = 2
[profiles.check.evaluation]
tasks = 4
"""

_REWARD = '''"""How much of an answer is right; used where NAME.toml names NAME.jsonl@NAME.py:reward."""

import re

import kifu


def reward(answer: str, task: kifu.Task) -> float:
    """1 for the right number, 0.1 for any number, else 0."""
    numbers = re.findall(r"-?\\d+", answer)
    if not numbers:
        return 0.0
    return 1.0 if numbers[-1] == task.data["answer"] else 0.1
'''

_QUESTIONS = "".join(
    f'{{"id": "{a}+{b}", "prompt": "What is {a} + {b}? Answer with the number.", "answer": "{a + b}"}}\n'
    for a in range(1, 7)
    for b in range(1, 7)
)

_SINGLE = """# Questions with a checkable answer, one message each; lines of NAME.jsonl are tasks, a fifth is held out.
# With the reward of NAME.py instead of the built-in check: name = "NAME.jsonl@NAME.py:reward".
kifu = 1

[environment]
name = "NAME.jsonl@numeric"
decision_model = "whole answer, contextual bandit"
collector_limits = { tokens = 128 }
on_truncation = "terminal"                # an answer that is cut is judged as it stands

[policy]
model = "tiny"                            # random weights, for a trial in seconds; "smollm2-135m" is a real one
decoding = { temperature = 1.0, max_new_tokens = 8 }
weights = { type = "lora", rank = 8 }

[credit]
algorithm = "grpo"

[update]
steps = 4
prompts_per_step = 4
group_size = 4
optimizer = { learning_rate = 3e-4 }

[evaluation]
tasks = 4

[profiles.check.update]                   # the whole pipeline; never a result
steps = 2
"""

STARTERS: Mapping[str, Mapping[str, str]] = {
    "tool": {"{name}.py": _WORLD, "{name}.toml": _TOOL},
    "single": {"{name}.jsonl": _QUESTIONS, "{name}.py": _REWARD, "{name}.toml": _SINGLE},
}
"""Kind to file name to content; NAME stands for the name."""
