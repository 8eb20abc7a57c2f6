"""Advice to glibc's allocator."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")

HOLES = """
import ctypes, sys
from agentrl.machine import allocator

MIB = 2**20
libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
libc.free.argtypes = (ctypes.c_void_p,)

def made(size):
    block = libc.malloc(size)
    ctypes.memset(block, 1, size)
    return block

def private():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

print(*(getattr(allocator, name)() for name in sys.argv[1:]))
libc.free(made(24 * MIB))  # from here on blocks of that size are cut from the heap
blocks, between = [], []
for _ in range(20):
    blocks.append(made(8 * MIB))
    between.append(made(64 * 1024))
before = private()
for block in blocks:
    libc.free(block)
print(before - private())
"""


def freed(*asked: str) -> tuple[str, float]:
    """What the advice returned, and MiB of 160 that came back to the kernel."""
    command = [sys.executable, "-c", HOLES, *asked]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return lines[0], float(lines[1])


def test_freed_blocks_leave_no_holes_in_the_heap():
    said, mib = freed("return_freed_memory")
    assert said == "True"
    assert mib > 150
    assert freed()[1] < 20  # what it is about


def test_whoever_trains_keeps_its_blocks():
    """Fails if a model that is loaded beside one that trains takes its blocks from it."""
    said, mib = freed("keep_freed_memory", "return_freed_memory")
    assert said == "True False"
    assert mib < 20
