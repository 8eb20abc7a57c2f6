"""Advice to glibc's allocator, for processes that compute on a CPU.

A training pass allocates and frees a gigabyte of activations per couple of thousand tokens. glibc
hands blocks of that size back to the kernel on every free, and the next pass pays a page fault and
a cleared page for each 4 KiB of it: a tenth of a step on a small CPU machine when the main thread
trains, less in worker threads. With a high threshold the blocks stay in the heap, and from the
third step on a run has almost no faults left.

A heap of each thread's own (an arena) would undo that: it never holds a block above 64 MiB, and
what one thread has freed is of no use to the next. With one heap for all threads four steps of the
quickstart had 2.0 million page faults, not 3.4 to 3.8, and took 8.5 GB, not 11 to 12.7.

A rank of a divided model is better off the other way round until it trains. glibc learns from what
is freed to take blocks of up to 32 MiB from the heap, too, and each weight that the start gathers
and frees leaves a hole there that the next one does not fit into: a quarter of a rank's memory.
"""

from __future__ import annotations

import ctypes
import logging
import platform
from collections.abc import Mapping
from functools import cache

logger = logging.getLogger(__name__)

# Numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGEST = (1 << 31) - 1


@cache
def keep_freed_memory() -> bool:
    """Ask glibc to keep freed blocks, once; returns whether it took the advice.

    Holds for the whole process. Does nothing on systems without glibc.
    """
    return _advise({_M_MMAP_THRESHOLD: 1 << 30, _M_TRIM_THRESHOLD: _LARGEST})


def return_freed_memory() -> bool:
    """Ask glibc to hand freed blocks of 1 MiB and more to the kernel; returns whether it will.

    Holds for the whole process until `keep_freed_memory`, after which this does nothing. Does
    nothing on systems without glibc.
    """
    return not keep_freed_memory.cache_info().currsize and _advise({_M_MMAP_THRESHOLD: 1 << 20})


def share_one_heap() -> bool:
    """Ask glibc for one heap for all threads; returns whether it took the advice.

    Holds for threads that start afterwards. Does nothing on systems without glibc.
    """
    return _advise({_M_ARENA_MAX: 1})


def _advise(options: Mapping[int, int]) -> bool:
    if platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    taken = all([mallopt(option, value) == 1 for option, value in options.items()])
    logger.debug("glibc takes %s: %s", dict(options), taken)
    return taken
