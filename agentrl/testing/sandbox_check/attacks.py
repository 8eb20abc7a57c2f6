"""Checks of classes of attacks on what looks after a program: shapes of trees, held memory.

Each class is a list of programs. A backend passes if every one of them is held or ended, and the
sandbox goes on working for its owner afterwards.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl.sandbox import Outcome, Sandbox, SandboxBackend
from agentrl.testing.sandbox_check.check import brief, check, expect, opened, python

CHAIN = """
import os
os.symlink('l1', 'l0')
for n in range(1, 1200): os.symlink(f'l{n + 1}', f'l{n}')
open('l1200', 'w').write('x')
os.makedirs('t')
os.symlink('../l0', 't/l0')
"""
CHAIN_OF_DIRECTORIES = """
import os
os.mkdir('l1200')
for n in range(1199, -1, -1): os.symlink(f'l{n + 1}/.', f'l{n}')
"""
LOOPS = """
import os
os.symlink('l0', 'l0'); os.symlink('b', 'a'); os.symlink('a', 'b'); os.mkdir('t')
os.symlink('../t/t', 't/t')
"""
LONG_WAYS = """
import os
os.mkdir('d')
for n in range(60): os.symlink('d/../' * 800 + f'l{n + 1}', f'l{n}')
os.mkdir('l60'); os.mkdir('t')
"""
"""Each link alone can be followed; together they are a way of 50,000 names."""
DEEP = """
import os
os.mkdir('t'); os.chdir('t')
for n in range(3000): os.mkdir('d' * 50); os.chdir('d' * 50)
open('bottom', 'w').write('x')
"""
WIDE = """
import os
os.mkdir('t')
for n in range(3000): os.mkdir(f't/{n}'); open(f't/{n}/f', 'w')
"""
ODD_FILES = """
import os, socket
os.mkdir('t'); os.mkfifo('l0'); os.mkfifo('t/p')
socket.socket(socket.AF_UNIX).bind('t/s')
os.symlink('/proc/self/mem', 't/m'); os.symlink('/dev/zero', 't/z')
for name in (b'\\xff\\n', b'\\x00'[1:] + b'n' * 255, b'-rf'): os.close(os.open(b't/' + name, 65))
"""
SWAPPED = """
import os, shutil
os.mkdir('../other'); os.rename('../work', '../was'); os.symlink('/etc', '../work')
"""
TREES = (CHAIN, CHAIN_OF_DIRECTORIES, LOOPS, LONG_WAYS, DEEP, WIDE, ODD_FILES, SWAPPED)
"""Programs that leave something behind which requests for files then meet."""
REQUEST_S = 20.0
"""A request may be slow on a loaded machine, but not slow by the number of files times itself."""


def _requests(sandbox: Sandbox, source: Path) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
    """Every request for files, as a program would like it to be made."""
    return [
        ("read", lambda: sandbox.read_file("l0")),
        ("read below", lambda: sandbox.read_file("l0/f")),
        ("write", lambda: sandbox.write_file("l0", b"x")),
        ("write below", lambda: sandbox.write_file("l0/a/b", b"x")),
        ("upload", lambda: sandbox.upload(source, "l0/tree")),
        ("upload onto", lambda: sandbox.upload(source, "l0")),
        ("snapshot", lambda: sandbox.snapshot()),
        ("download", lambda: sandbox.download("t", max_bytes=2**20)),
        ("download of a link", lambda: sandbox.download("l0", max_bytes=2**20)),
        ("download of all", lambda: sandbox.download(".", max_bytes=2**20)),
    ]


@check()
async def trees_of_any_shape_end_no_sandbox(backend: SandboxBackend) -> None:
    """Links in chains and loops, and trees of any depth, fail the request that meets them alone."""
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "f").write_bytes(b"x")
        await asyncio.gather(*(_meets(backend, tree, Path(place)) for tree in TREES))


async def _meets(backend: SandboxBackend, tree: str, source: Path) -> None:
    async with opened(backend) as sandbox:
        made = await python(sandbox, tree)
        # A backend may forbid the program to make some of it.
        expect(made, Outcome.OK, Outcome.NONZERO)
        for name, request in _requests(sandbox, source):
            try:
                found = await asyncio.wait_for(request(), REQUEST_S)
            except (SandboxError, TimeoutError) as error:
                raise AssertionError(f"{name} after {tree!r}: {error!r}") from error
            except (OSError, ValueError):
                continue
            if tree is SWAPPED and made.outcome is Outcome.OK and isinstance(found, bytes | dict):
                assert not found, f"{name} gave something from outside the work directory"
        alive = await sandbox.exec(("echo", "alive"))
        assert alive.stdout == "alive\n", brief(alive)
