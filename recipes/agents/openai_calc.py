"""An agent with the OpenAI SDK: it looks numbers up, calculates and answers. It knows nothing of training."""

import json
import os
import re

from openai import OpenAI

SYSTEM = "Use the tools to find the answer."
ARG = {"type": "object", "properties": {"arg": {"type": "string"}}, "required": ["arg"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": text, "parameters": ARG}}
    for name, text in (
        ("get", "Look a number up by name."),
        ("calc", "Calculate, e.g. 12*7."),
        ("answer", "Give the final answer."),
    )
]


def calculate(expression: str) -> str:
    """Two whole numbers and a sign."""
    found = re.fullmatch(r"(\d{1,5})([*+-])(\d{1,5})", expression)
    if not found:
        return "Error: bad expression."
    left, right = int(found[1]), int(found[3])
    return str({"*": left * right, "+": left + right, "-": left - right}[found[2]])


def solve(task: dict) -> str:
    """Answer the question of a task; only its tools see the numbers."""
    known = {task["first"]: task["numbers"][0], task["second"]: task["numbers"][1]}
    client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task["prompt"]}]
    for _ in range(5):
        reply = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages, tools=TOOLS)
        message = reply.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            arg = str(json.loads(call.function.arguments)["arg"])
            if call.function.name == "answer":
                return arg
            if call.function.name == "get":
                text = f"{arg} = {known[arg]}" if arg in known else "Error: unknown name."
            else:
                text = calculate(arg)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    return ""
