"""Keeps freed memory in the process, so that every micro-batch does not fault its pages in anew.

A training pass allocates and frees a gigabyte of activations per couple of thousand tokens. glibc
hands blocks of that size back to the kernel on every free, and the next pass pays a page fault and
a cleared page for each 4 KiB of it: a tenth of a step on a small CPU machine when the main thread
trains, less in worker threads. With a high threshold the blocks stay in the heap, and from the
third step on a run has almost no faults left.
"""

from __future__ import annotations

import ctypes
import logging
import platform

logger = logging.getLogger(__name__)

# Numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST = (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Ask glibc to keep freed blocks; returns whether it took the advice.

    Holds for the whole process. Does nothing on systems without glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    options = {_M_MMAP_THRESHOLD: 1 << 30, _M_TRIM_THRESHOLD: _LARGEST}
    taken = all([mallopt(option, value) == 1 for option, value in options.items()])
    logger.debug("glibc keeps freed memory: %s", taken)
    return taken
