"""The heap of a process that runs rollouts.

torch and transformers leave about a million objects behind that live as long as the process. A full
pass of the garbage collector visits each of them, which holds the event loop for some hundred
milliseconds, again and again as conversations come and go.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Keep the garbage collector from visiting what exists now, for the `with` block.

    What is made later is collected as ever. Cycles that become garbage meanwhile and hold what
    existed before are freed by the first full pass behind the block.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
