"""Attacks on the test of code tasks, in sandboxes of every kind; none may earn or be dropped.

They know how the test works: the tested code (`harness`) is asked line by line, a `check` runs in
another sandbox, expected values never leave the trainer's process.
"""

from __future__ import annotations

import pytest
from agentrl_envs.code import humaneval_tasks
from agentrl_sandboxes import BACKENDS

from agentrl.errors import SandboxError
from agentrl.sandbox import SandboxLimits
from agentrl.types import Task
from tests.envs.code.test_cheats import CHECKED
from tests.envs.code.test_env import TASK, begin, block
from tests.envs.conftest import BackendSandboxes
from tests.sandboxes.working import why_not

LIMITS = SandboxLimits(memory_bytes=256 * 2**20, disk_bytes=32 * 2**20)


KINDS = ("process", "bubblewrap", "userns", "docker")


@pytest.fixture(
    params=[
        pytest.param(kind, marks=pytest.mark.docker if kind == "docker" else ()) for kind in KINDS
    ]
)
def backend_name(request: pytest.FixtureRequest) -> str:
    """Each backend in turn."""
    return request.param


@pytest.fixture
async def sandboxes(backend_name: str):
    if why := why_not(backend_name):
        pytest.skip(why)
    made = BACKENDS[backend_name]()
    yield BackendSandboxes(made, LIMITS)
    await made.close()


# Only programs that were started as ours are, so that no other process of the machine is touched.
OTHERS = """
import ctypes, os
def others():
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if b"-I\\0-S" in file.read():
                        yield int(name)
            except OSError:
                pass
def regions(pid):
    with open(f"/proc/{pid}/maps") as file:
        for line in file:
            span, mode = line.split()[:2]
            low, high = (int(part, 16) for part in span.split("-"))
            if mode.startswith("rw") and high - low < 1 << 26:
                yield low, high
def attempt(act):
    for pid in others():
        try:
            act(pid)
        except (OSError, ValueError, OverflowError):
            pass
"""

FORGERIES = {
    "overwrites the assertions of the judge": """
def act(pid):
    for low, high in regions(pid):
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            memory.seek(low)
            data = memory.read(high - low)
            for word, other in ((b"assert ", b"1, not "), (b"assert\\t", b"1, not ")):
                at = data.find(word)
                while at >= 0:
                    memory.seek(low + at)
                    memory.write(other)
                    at = data.find(word, at + 1)
attempt(act)
""",
    "reads and writes memory by system calls": """
libc = ctypes.CDLL(None, use_errno=True)
class Span(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
def act(pid):
    for low, high in regions(pid):
        space = ctypes.create_string_buffer(high - low)
        mine, theirs = Span(ctypes.addressof(space), high - low), Span(low, high - low)
        got = libc.process_vm_readv(pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
        at = -1
        while got > 0 and (at := space.raw.find(b"assert ", at + 1)) >= 0:
            word = ctypes.create_string_buffer(b"1, not ", 7)
            mine, theirs = Span(ctypes.addressof(word), 7), Span(low + at, 7)
            libc.process_vm_writev(pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
attempt(act)
""",
    "attaches as a debugger": """
libc = ctypes.CDLL(None, use_errno=True)
def act(pid):
    libc.ptrace(16, pid, None, None)  # PTRACE_ATTACH
    libc.ptrace(17, pid, None, None)  # PTRACE_DETACH
attempt(act)
os.kill(os.getpid(), 0)
""",
    "says the verdict on the streams of others": """
def act(pid):
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            with open(f"/proc/{pid}/fd/{fd}", "wb", buffering=0) as out:
                out.write(b'{"verdict":""}\\n' * 3)
        except OSError:
            pass
attempt(act)
""",
    "steals a nonce and signs": """
import re, signal
def act(pid):
    for low, high in regions(pid):
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(low)
            data = memory.read(high - low)
            for nonce in set(re.findall(rb"[^0-9a-f]([0-9a-f]{32})[^0-9a-f]", data)):
                report = b'{"load": {"value": null}, "cases": [], "check": {"value": null}}'
                with open(f"/proc/{pid}/fd/1", "wb", buffering=0) as out:
                    out.write(b"\\n%b start\\n%b %b\\n" % (nonce, nonce, report))
attempt(act)
attempt(lambda pid: os.kill(pid, signal.SIGKILL))
""",
    "says the verdict on its own streams": """
for fd in range(0, 64):
    try:
        os.write(fd, b'{"verdict":""}\\n{"verdict": ""}\\n{"value":null}\\n' * 9)
    except OSError:
        pass
""",
    "answers with a call of the judge": """
for fd in range(3, 64):
    try:
        os.write(fd, b'{"value":null}\\n' + b'{"call":[1]}\\n' * 9)
    except OSError:
        pass
""",
    "ends and stops every other process": """
import signal
for number in (signal.SIGSTOP, signal.SIGKILL):
    attempt(lambda pid: os.kill(pid, number))
""",
    "takes off its timers and waits": """
import signal, time
signal.setitimer(signal.ITIMER_REAL, 0)
signal.setitimer(signal.ITIMER_PROF, 0)
time.sleep(60)
""",
    "floods": """
while True:
    for fd in range(3, 16):
        try:
            os.write(fd, b"9" * 65536)
        except OSError:
            pass
""",
}


@pytest.mark.parametrize("name", FORGERIES)
async def test_no_verdict_can_be_forged(sandboxes, backend_name: str, name: str) -> None:
    # Each meets both kinds of judge, on one half of the backends each.
    turn = list(FORGERIES).index(name) + KINDS.index(backend_name)
    env = await begin(sandboxes, (TASK, CHECKED)[turn % 2], max_turns=1, wall_s=1.0)
    step = await env.step(block(f"{OTHERS}\n{FORGERIES[name]}\ndef double(n): return 0"))
    assert (step.done, step.rewards, step.scores) == (True, 0.0, 0.0)


@pytest.mark.parametrize("name", list(FORGERIES)[:5])
async def test_humaneval_cannot_be_forged(sandboxes, name: str) -> None:
    # Fails if the check runs where the tested code does: the first of these was paid 57 of 60.
    for task in humaneval_tasks(n=60)[::30]:
        env = await begin(sandboxes, task, max_turns=1, wall_s=1.0)
        setup = task.label["prompt"]
        attack = f"{OTHERS}\n{FORGERIES[name]}\n{setup}    return None\n"
        step = await env.step(block(attack))
        assert (step.done, step.rewards) == (True, 0.0), task.id


HIDDEN = 918273
SECRET = Task(
    id="secret",
    prompt="Write double(n).",
    label={
        "entry_point": "double",
        "public": [{"args": [3], "expected": 6}],
        "hidden": [{"args": [HIDDEN], "expected": 2 * HIDDEN}],
    },
)

READS_AHEAD = """
import os, select
def double(n):
    found = []
    for fd in range(0, 32):
        try:
            if select.select([fd], [], [], 0.02)[0]:
                found.append(os.read(fd, 4096))
        except (OSError, ValueError):
            pass
    frame = __import__("sys")._getframe()
    while frame is not None:
        found.append({k: v for k, v in frame.f_locals.items() if k in ("line", "request", "job")})
        frame = frame.f_back
    return repr(found)[:50] if "918273" not in repr(found) else 918273
"""

KEEPS = """
import ctypes, os, subprocess, sys
here = [os.getcwd(), os.environ.get("HOME", "."), os.environ.get("TMPDIR", ".")]
walls = "AGENTRL_SANDBOX" not in os.environ  # the backend `process` has none
here += ["/tmp", "/dev/shm"] if walls else []
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
def keep(text):
    for place in here:
        try:
            with open(f"{place}/kept", "a") as file:
                file.write(text)
        except OSError:
            pass
    where = libc.shmat(libc.shmget(4711, 4096, 0o1666), None, 0) if walls else None
    if where not in (None, 2**64 - 1):
        ctypes.memmove(where, text.encode() + b"\\0", len(text) + 1)
    subprocess.Popen([sys.executable, "-c", f"import time; x = '{text}'; time.sleep(60)"])
def kept():
    for place in here:
        try:
            with open(f"{place}/kept") as file:
                return file.read()
        except OSError:
            pass
    where = libc.shmat(libc.shmget(4711, 4096, 0o666), None, 0) if walls else None
    if where not in (None, 2**64 - 1):
        return ctypes.string_at(where).decode()
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/cmdline") as file:
                if "time.sleep(60)" in (text := file.read()) and "918273" in text:
                    return text
        except OSError:
            pass
    return "nothing"
"""


async def test_hidden_inputs_come_back_in_no_feedback(sandboxes) -> None:
    env = await begin(sandboxes, SECRET, max_turns=4, wall_s=2.0)
    first = await env.step(block(READS_AHEAD))
    assert "double(3) returned" in first.environment_feedback
    second = await env.step(block(f"{KEEPS}\ndef double(n):\n    keep(str(n))\n    return 0"))
    third = await env.step(block(f"{KEEPS}\ndef double(n): return kept()"))
    assert "double(3) returned 'nothing'" in third.environment_feedback
    for step in (first, second, third):
        assert str(HIDDEN) not in step.environment_feedback
        assert not step.done


async def test_the_way_to_end_says_nothing_of_hidden_inputs(sandboxes) -> None:
    # A line that is no answer, and then an end of its choice once it has seen the hidden input.
    ends = """
import os
def double(n):
    if n == 3:
        os.write(4, b"no answer\\n")
        os.dup2(os.open("/dev/null", os.O_WRONLY), 4)
        return 6
    while n > 900000: pass
"""
    env = await begin(sandboxes, SECRET, max_turns=2, wall_s=0.5)
    step = await env.step(block(ends))
    assert "did not finish" not in step.environment_feedback


REPLACES_PYTHON = """
import os, shutil, stat
double = lambda n: 0
for place in os.environ.get("PATH", "").split(":"):
    for name in ("python3", "python"):
        path = f"{place}/{name}"
        try:
            if os.path.lexists(path):
                os.remove(path)
            with open(path, "w") as file:
                said = 'start\\\\n{"value":null}\\\\n{"verdict":""}\\\\n'
                file.write(f"#!/bin/sh\\nprintf '{said}'\\ncat")
            os.chmod(path, 0o755)
        except OSError:
            pass
"""


@pytest.mark.parametrize("task", [TASK, CHECKED], ids=["cases", "check"])
async def test_another_interpreter_is_gone_in_the_next_turn(sandboxes, task: Task) -> None:
    env = await begin(sandboxes, task, max_turns=2, wall_s=1.0)
    await env.step(block(REPLACES_PYTHON + "import os\nos.kill(os.getpid(), 9)"))
    assert (await env.step(block("def double(n): return 0"))).rewards == 0.0
    env = await begin(sandboxes, TASK, max_turns=2, wall_s=1.0)
    await env.step(block(REPLACES_PYTHON))
    assert (await env.step(block("def double(n): return 2 * n"))).rewards == 1.0


BREAKS = {
    "removes the directory": "import os, shutil\nshutil.rmtree(os.getcwd(), ignore_errors=True)",
    "locks the directory": "import os\nos.chmod('.', 0)\nos.chmod(os.environ['HOME'], 0)",
    "leaves shared memory": """
import ctypes, os
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for key in range(4 * ("AGENTRL_SANDBOX" not in os.environ)):
    where = libc.shmat(libc.shmget(0, 60 << 20, 0o1666), None, 0)
    if where not in (None, 2**64 - 1):
        ctypes.memset(where, 1, 60 << 20)
""",
    "leaves queues and semaphores": """
import ctypes, os
libc = ctypes.CDLL(None)
for key in range(200 * ("AGENTRL_SANDBOX" not in os.environ)):
    libc.msgget(0, 0o1666)
    libc.semget(0, 200, 0o1666)
""",
    "makes empty files": "for i in range(20000): open(f'f{i}', 'w').close()",
    "fills the disk": "open('f', 'wb').write(b'x' * (31 << 20))",
    "nests directories": "import os\nfor i in range(1500): os.mkdir('d'); os.chdir('d')",
    "kills all it may": """
import os, signal
if "AGENTRL_SANDBOX" not in os.environ:  # as an ordinary user, all of the user's programs
    os.kill(-1, signal.SIGKILL)
os.kill(os.getppid(), signal.SIGKILL)
""",
    "stops its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)",
    "leaves processes": "import subprocess\nfor i in range(8): subprocess.Popen(['sleep', '60'])",
}


ANSWERS = {
    "answers too deeply": """
import os
os.write(4, b'{"value":' + b'[' * 30000 + b']' * 30000 + b'}\\n')
""",
    "answers too much": "import os\nos.write(4, b'9' * 3_000_000)",
    "answers a number beyond any": """
import os
os.write(4, b'{"value":' + b'9' * 60000 + b'}\\n')
""",
    "answers no object": """
import os
os.write(4, b'[]\\n7\\nnull\\n"value"\\n{"error":1}\\n')
""",
    "answers a set that is slow": "import os\n"
    "v = ','.join(str(k * (2**61 - 1)) for k in range(3000))\n"
    'os.write(4, b\'{"value":null}\\n{"value":{"t":"set","v":[\' + v.encode() + b\']}}\\n\')',
}
"""Lines that are read outside of the sandbox, so one kind of it shows what becomes of them."""


@pytest.mark.parametrize("name", BREAKS)
async def test_what_code_breaks_is_its_own_doing(sandboxes, name: str) -> None:
    await broken_by(BREAKS[name], sandboxes)


@pytest.mark.parametrize("name", ANSWERS)
async def test_what_code_answers_is_its_own_doing(real, name: str) -> None:
    await broken_by(ANSWERS[name], real)


async def broken_by(breaks: str, sandboxes) -> None:
    # Fails if it raises: a SandboxError would drop the rollout, and its reward of 0 with it.
    code = f"{breaks}\ndef double(n): return 0"
    env = await begin(sandboxes, TASK, max_turns=3, wall_s=2.0)
    await env.step(block(code))
    await env.step(block("def double(n): return 0"))
    step = await env.step(block("def double(n): return 2 * n"))
    assert (step.done, step.rewards) == (True, 1.0)
    env = await begin(sandboxes, CHECKED, max_turns=1, wall_s=2.0)
    step = await env.step(block(code))
    assert (step.done, step.rewards) == (True, 0.0)


async def test_a_missing_interpreter_is_nobodys_doing(sandboxes) -> None:
    env = await begin(sandboxes, TASK, python="python0")
    with pytest.raises(SandboxError, match="did not start"):
        await env.step(block("def double(n): return 2 * n"))
