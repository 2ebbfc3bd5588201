"""Blocking work behind an asyncio face."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

CANCEL_PATIENCE = 120.0


class Threads:
    """Runs blocking work on threads of its own. A cancelled caller waits for the end of its work, so that nothing is made behind its back."""

    def __init__(self, name: str, count: int = 64):
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)

    def shut(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def call(self, work: Callable, *args, undo: Callable[[Any], Awaitable] | None = None) -> Any:
        """`work(*args)`; when cancelled meanwhile, `undo(result)` takes back what it made."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            with suppress(Exception):
                made = await asyncio.wait_for(asyncio.shield(future), CANCEL_PATIENCE)
                if undo:
                    await undo(made)
            raise

    async def stoppable(self, work: Callable, *args) -> Any:
        """`work(*args, cancelled)`; cancelling sets the event `cancelled`, which the work looks at often."""
        cancelled = threading.Event()
        future = asyncio.get_running_loop().run_in_executor(self._threads, work, *args, cancelled)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            cancelled.set()
            with suppress(Exception):
                await asyncio.wait_for(asyncio.shield(future), CANCEL_PATIENCE)
            raise
