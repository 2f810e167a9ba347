"""Torch's thread count around the engine's blocks."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from kifu.engines.recurrent.threads import one_thread
from kifu.policy import Engine, Request

Make = Callable[..., Engine]
Ask = Callable[..., Request]


@pytest.fixture
def four() -> Iterator[None]:
    """Torch on four threads, and back to what it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_overlapping_blocks_of_two_threads_give_the_number_back_at_the_end(four: None) -> None:
    """The worker enters first and leaves last; meanwhile the main thread's own block ends."""
    entered, leave, seen = threading.Event(), threading.Event(), []

    def work() -> None:
        with one_thread():
            entered.set()
            leave.wait(5)
            seen.append(torch.get_num_threads())

    worker = threading.Thread(target=work)
    worker.start()
    entered.wait(5)
    with one_thread():
        seen.append(torch.get_num_threads())
    leave.set()
    worker.join()
    with one_thread():
        seen.append(torch.get_num_threads())

    assert seen == [1, 1, 1]


def test_one_block_gives_the_callers_number_back(four: None) -> None:
    """Also when the block raises."""

    def fail() -> None:
        with one_thread():
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()

    assert torch.get_num_threads() == 4


@pytest.mark.parametrize("hidden", [16, 64])
def test_generations_do_not_depend_on_the_number_of_threads(make: Make, ask: Ask, four: None, hidden: int) -> None:
    """Value and logprobs to the last bit on four threads and on one."""

    async def play() -> list[bytes]:
        sampler = make(hidden=hidden).sampler
        found = await asyncio.gather(*(sampler.sample(ask([i % 11, 4, 9], stream=f"{i}", limit=6)) for i in range(20)))
        return [item.logprobs.tobytes() + str(item.value).encode() for item in found]

    many = asyncio.run(play())
    torch.set_num_threads(1)

    assert asyncio.run(play()) == many
