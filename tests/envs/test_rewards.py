"""The marker of reward functions refuses what a run could not call."""

import pytest

from kifu.envs import Task
from kifu.envs.rewards import reward
from kifu.errors import UsageError


def test_a_marked_function_is_the_function() -> None:
    def right(answer: str, task: Task) -> bool:
        return answer == task.data["answer"]

    assert reward(right) is right


def test_a_function_that_cannot_take_answer_and_task_is_refused_where_it_is_written() -> None:
    with pytest.raises(UsageError, match=r"reward `.*alone`: cannot be called with an answer and a task"):

        @reward  # type: ignore[arg-type]
        def alone(answer: str) -> bool:
            return True


def test_an_async_function_is_refused() -> None:
    with pytest.raises(UsageError, match="is async"):

        @reward  # type: ignore[arg-type]
        async def later(answer: str, task: Task) -> bool:
            return True
