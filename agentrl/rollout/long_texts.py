"""Work on long texts beside the event loop.

Encoding 64 KiB takes some 15 ms, and as long as the loop encodes, every conversation of the process
waits. The tokenizer releases the GIL for long texts, so a thread does it without a stall. Short
texts are encoded where they are: starting a thread on one takes as long.
"""

from __future__ import annotations

import asyncio
import functools
import os
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

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(
            max_workers=min(_MOST_THREADS, os.cpu_count() or 1), thread_name_prefix="long-texts"
        )

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
        if characters <= LONG_TEXT:
            return function(*args, **kwargs)
        call = functools.partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
