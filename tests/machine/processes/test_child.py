"""Children answer, keep to their limits, and end whatever they or their parents do."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentrl.machine.processes.child import ChildEnded, ChildProcess
from agentrl.machine.processes.child_main import OUT_OF_MEMORY

CHILDREN = "tests.machine.processes.children"
PATIENT_S = 120.0


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENT_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def echo() -> Iterator[ChildProcess]:
    child = ChildProcess(f"{CHILDREN}:echo")
    yield child
    child.close()


@pytest.mark.parametrize("size", [0, 1, 2**16, 2**25])
def test_frames_arrive_as_they_were_sent(echo: ChildProcess, size: int) -> None:
    body = os.urandom(size)
    head, back = echo.ask({"text": "ü\n\0", "list": [1, None]}, body, timeout_s=PATIENT_S)
    assert (head["text"], head["list"], back) == ("ü\n\0", [1, None], body)


def test_frames_may_be_sent_ahead(echo: ChildProcess) -> None:
    # Fails if a child that answers and a parent that asks wait for each other.
    for number in range(200):
        echo.send({"number": number}, b"x" * 10_000)
    for number in range(200):
        assert echo.receive(PATIENT_S).head["number"] == number


def test_what_it_prints_is_not_an_answer(tmp_path: Path) -> None:
    with (tmp_path / "printed").open("wb") as file:
        child = ChildProcess(f"{CHILDREN}:echo", output=file)
        assert child.ask({"print": "hello"}, timeout_s=PATIENT_S).head["print"] == "hello"
        child.close()
    assert (tmp_path / "printed").read_text() == "hello\nhello\n"


def test_an_answer_that_is_late_ends_the_child(echo: ChildProcess) -> None:
    with pytest.raises(TimeoutError):
        echo.ask({"sleep_s": 1000}, timeout_s=0.2)
    assert not echo.alive


def test_a_child_that_reads_nothing_holds_nobody_up() -> None:
    child = ChildProcess(f"{CHILDREN}:computes")
    with pytest.raises((TimeoutError, ChildEnded)):
        child.ask({}, b"x" * 2**25, timeout_s=0.5)
    child.close()
    assert not child.alive


def test_who_waits_may_be_interrupted(echo: ChildProcess) -> None:
    cancelled = threading.Event()
    threading.Timer(0.2, cancelled.set).start()
    with pytest.raises(InterruptedError):
        echo.receive(PATIENT_S, cancelled)


def test_who_waits_learns_that_another_thread_killed_it(echo: ChildProcess) -> None:
    threading.Timer(0.2, echo.kill).start()
    with pytest.raises(ChildEnded) as caught:
        echo.receive(PATIENT_S)
    assert caught.value.status == -signal.SIGKILL


@pytest.mark.parametrize("grace_s", [None, 5.0])
def test_its_status_is_known(grace_s: float | None) -> None:
    child = ChildProcess(f"{CHILDREN}:echo", grace_s=grace_s)
    with pytest.raises(ChildEnded, match="the process ended with status 7"):
        child.ask({"exit": 7}, timeout_s=PATIENT_S)
    child.close()


def test_memory_has_a_limit() -> None:
    child = ChildProcess(f"{CHILDREN}:takes_memory")
    assert child.receive(PATIENT_S).head == {"refused": True}
    child.close()


@pytest.mark.parametrize("grace_s", [None, 5.0])
def test_processor_time_has_a_limit(grace_s: float | None) -> None:
    child = ChildProcess(f"{CHILDREN}:computes", grace_s=grace_s)
    with pytest.raises(ChildEnded) as caught:
        child.receive(PATIENT_S)
    assert caught.value.status == -signal.SIGXCPU
    child.close()


def test_what_it_raises_is_printed() -> None:
    child = ChildProcess(f"{CHILDREN}:raises", output=subprocess.PIPE)
    assert child.output is not None
    assert b"ValueError: on purpose" in child.output.read()
    with pytest.raises(ChildEnded, match="status 1"):
        child.receive(PATIENT_S)
    child.close()


def test_threads_that_it_leaves_hold_nobody_up() -> None:
    child = ChildProcess(f"{CHILDREN}:leaves_a_thread")
    child.receive(PATIENT_S)
    with pytest.raises(ChildEnded, match="status 1"):
        child.ask({"raise": True}, timeout_s=PATIENT_S)
    child = ChildProcess(f"{CHILDREN}:leaves_a_thread")
    pid = child.receive(PATIENT_S).head["pid"]
    child._link.close()  # as when this process ends
    wait_for(lambda: ended(pid))
    child.close()


def test_a_frame_that_does_not_fit_into_its_memory_ends_it() -> None:
    child = ChildProcess(f"{CHILDREN}:reads_in_little_room")
    child.receive(PATIENT_S)
    with pytest.raises(ChildEnded) as caught:
        child.ask({}, bytes(2**29), timeout_s=PATIENT_S)
    assert caught.value.status == OUT_OF_MEMORY


def test_its_end_shows_though_others_hold_its_channel() -> None:
    child = ChildProcess(f"{CHILDREN}:forks_and_exits")
    left = child.receive(PATIENT_S).head["left"]
    try:
        with pytest.raises(ChildEnded, match="status 3"):
            child.receive()
    finally:
        os.kill(left, signal.SIGKILL)
        child.close()


def test_a_tree_that_was_stopped_is_ended_as_well() -> None:
    child = ChildProcess(f"{CHILDREN}:leaves_processes", grace_s=0.2)
    left = child.receive(PATIENT_S).head["left"]
    os.kill(child.pid, signal.SIGSTOP)
    child.close()
    assert all(ended(pid) for pid in left)


@pytest.mark.parametrize("closed", [(0, 1), (1, 2), (0, 1, 2)])
def test_a_parent_may_have_closed_its_standard_streams(closed: tuple[int, ...]) -> None:
    program = (
        "import os\n"
        f"for stream in {closed}: os.close(stream)\n"
        "from agentrl.machine.processes.child import ChildProcess\n"
        f"child = ChildProcess('{CHILDREN}:echo')\n"
        f"child.ask({{}}, timeout_s={PATIENT_S})\n"
        "child.close()\n"
        "os._exit(42)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as parent:
        assert parent.wait(PATIENT_S) == 42


def test_it_imports_and_hashes_as_its_parent_does(tmp_path: Path) -> None:
    # An empty entry of the import path means the working directory, which is another one there.
    program = (
        "import sys\n"
        f"sys.path.append({str(Path.cwd())!r})\n"
        "from agentrl.machine.processes.child import ChildProcess\n"
        f"child = ChildProcess('{CHILDREN}:describes_itself', cwd='/')\n"
        f"head = child.receive({PATIENT_S}).head\n"
        "child.close()\n"
        "print(sys.path[0] == '', head['path'][0], head['hash'] == hash('text'))"
    )
    words = [sys.executable, "-c", program]
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    printed = subprocess.check_output(words, env=env, cwd=tmp_path, text=True)
    assert printed.split() == ["True", str(tmp_path), "True"]


def test_a_child_that_cannot_be_started_leaves_nothing_open() -> None:
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(FileNotFoundError):
        ChildProcess(f"{CHILDREN}:echo", cwd="/no/such/folder")
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_a_frame_has_a_limit() -> None:
    child = ChildProcess(f"{CHILDREN}:lies_about_sizes")
    with pytest.raises(ValueError, match="and at most 67108864 are read"):
        child.receive(PATIENT_S)
    child.close()


def test_closing_again_does_nothing(echo: ChildProcess) -> None:
    echo.close()
    echo.close()
    with pytest.raises((ChildEnded, OSError)):
        echo.ask({}, timeout_s=1)


@pytest.mark.parametrize("grace_s", [None, 1.0])
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_parent(end: signal.Signals, grace_s: float | None) -> None:
    target = "echo" if grace_s is None else "leaves_processes"
    program = (
        "import time\n"
        "from agentrl.machine.processes.child import ChildProcess\n"
        f"child = ChildProcess('{CHILDREN}:{target}', grace_s={grace_s})\n"
        f"{'child.send({})' if grace_s is None else ''}\n"
        "head = child.receive().head\n"
        "print(child.pid, head.get('pid', 0), *head.get('left', ()), flush=True)\n"
        "time.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        parent.send_signal(end)
    wait_for(lambda: all(ended(pid) for pid in pids if pid))


def test_closing_ends_all_that_it_started() -> None:
    child = ChildProcess(f"{CHILDREN}:leaves_processes", grace_s=0.2)
    left = child.receive(PATIENT_S).head["left"]
    assert not any(ended(pid) for pid in left)
    child.close()
    assert all(ended(pid) for pid in left)


HOST = """
class Host:
    OPERATIONS = ("add", "fail", "fill", "spin")

    def __init__(self, start):
        self.total = start

    def add(self, n):
        self.total += n
        return self.total

    def fail(self):
        raise KeyError("no such thing")

    def fill(self):
        return len(bytearray(2**31))

    def spin(self):
        while True:
            pass
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ChildProcess]:
    (tmp_path / "json.py").write_text(HOST)  # a file of any name, also of a module's
    child = ChildProcess("host")
    host = f"{tmp_path / 'json.py'}:Host"
    made = {"host": host, "arguments": {"start": 3}, "address_bytes": 2**30, "cpu_s": 1}
    assert child.ask(made, timeout_s=PATIENT_S).head == {"answer": None}
    yield child
    child.close()


def test_a_host_keeps_its_state(host: ChildProcess) -> None:
    for total in (5, 7):
        asked = {"operation": "add", "arguments": {"n": 2}}
        assert host.ask(asked, timeout_s=PATIENT_S).head == {"answer": total}


@pytest.mark.parametrize("operation", ["fail", "total", "__init__"])
def test_a_host_that_fails_says_why_and_goes_on(host: ChildProcess, operation: str) -> None:
    error = host.ask({"operation": operation, "arguments": {}}, timeout_s=PATIENT_S).head["error"]
    expected = "KeyError: 'no such thing'" if operation == "fail" else "unknown operation"
    assert expected in error
    asked = {"operation": "add", "arguments": {"n": 0}}
    assert host.ask(asked, timeout_s=PATIENT_S).head == {"answer": 3}


@pytest.mark.parametrize(
    ("operation", "status"), [("fill", OUT_OF_MEMORY), ("spin", -signal.SIGXCPU)]
)
async def test_limits_of_a_host_show_in_its_status(
    host: ChildProcess, operation: str, status: int
) -> None:
    with pytest.raises(ChildEnded) as caught:
        await host.ask_async({"operation": operation, "arguments": {}}, timeout_s=PATIENT_S)
    assert caught.value.status == status


async def test_asking_holds_no_event_loop(echo: ChildProcess) -> None:
    asked = asyncio.ensure_future(echo.ask_async({"sleep_s": 1.0}, timeout_s=PATIENT_S))
    turns = 0
    while not asked.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 10
    assert (await asked).head["sleep_s"] == 1.0
    with pytest.raises(TimeoutError):
        await echo.ask_async({"sleep_s": 1000}, timeout_s=0.1)


async def test_a_task_that_waits_hears_of_a_close() -> None:
    """Fails if it waits for ever: an event loop is not told that a socket was closed."""
    child = ChildProcess(f"{CHILDREN}:echo")
    receiving = asyncio.create_task(child.receive_async())
    await asyncio.sleep(0.2)
    child.close()
    async with asyncio.timeout(PATIENT_S):
        with pytest.raises(ChildEnded):
            await receiving
        with pytest.raises(ChildEnded):
            await child.receive_async()
    assert child._link.fileno() == -1
