"""Work on long texts beside the event loop.

Encoding 64 KiB takes some 15 ms, and as long as the loop encodes, every conversation of the process
waits. The tokenizer releases the GIL for long texts, so a thread does it without a stall. Short
texts are encoded where they are: starting a thread on one takes as long.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from agentrl.chat.tokenizer import LONG_TEXT

IMAGE_WORK = LONG_TEXT + 1
"""Characters whose encoding takes as long as reading an image, at least: it is done in a thread."""
T = TypeVar("T")
_MOST_THREADS = 4


class LongTexts:
    """Threads for the long texts of a rollout worker; they end with it."""

    def __init__(self, beside: LongTexts | None = None) -> None:
        """Begin to count time.

        Args:
            beside: whose threads do the work; None begins threads.
        """
        self.spent_s = 0.0
        """Processor time of all work that was given to this object."""
        self._threads: ThreadPoolExecutor
        self._thread: ThreadPoolExecutor
        if beside is not None:
            self._threads, self._thread = beside._threads, beside._thread
            return
        self._threads = ThreadPoolExecutor(
            max_workers=min(_MOST_THREADS, os.cpu_count() or 1), thread_name_prefix="long-texts"
        )
        # Each thread that keeps the GIL lets the event loop wait for its turn.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="long-texts-alone")

    async def run(
        self, characters: int, function: Callable[..., T], *args: object, **kwargs: object
    ) -> T:
        """Call `function` here, or in a thread.

        Args:
            characters: length of the texts it reads.
            function: depends on its arguments alone.
            args: its arguments.
            kwargs: its keyword arguments.
        """
        call = functools.partial(self._timed, functools.partial(function, *args, **kwargs))
        if characters <= LONG_TEXT:
            return call()
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def run_alone(self, characters: int, function: Callable[..., T], *args: object) -> T:
        """As `run`, for what keeps the GIL: one such call at a time."""
        call = functools.partial(self._timed, functools.partial(function, *args))
        if characters <= LONG_TEXT:
            return call()
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _timed(self, call: Callable[[], T]) -> T:
        began = time.thread_time()
        try:
            return call()
        finally:
            self.spent_s += time.thread_time() - began
