"""Judges the answers of the agents in this folder; it runs where the training runs, and no agent sees it."""

SIGNS = {"times": int.__mul__, "plus": int.__add__, "minus": int.__sub__}


def right(answer: str, task) -> bool:
    """Whether the answer is the number the question asks for."""
    left, other = task.data["numbers"]
    return answer.strip() == str(SIGNS[task.data["operation"]](left, other))
