"""Running things at once on the event loop."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def all_of(jobs: list[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Results in order; the first failure cancels the rest."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
