"""What somebody types to hang the inspector or to take the machine, and what comes of it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from agentrl.data import TrajectoryStore
from agentrl.errors import RunError
from agentrl.inspect.query import child
from agentrl.inspect.query.sql import Queries
from tests.data.records import group, trajectory

pytestmark = pytest.mark.slow

PATIENT_S = 120.0
"""For what has to happen on a busy machine."""
ENDLESS = "select count(*) from range(10000000000) a, range(100000) b"
DEAF = "select length(string_agg(repeat('x', 1000000), '')) from range(100000)"
"""Holds DuckDB in one function that does not hear an interrupt."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    store = TrajectoryStore(tmp_path / "run" / "trajectories")
    store.write(1, "train", [group(trajectory())])
    return tmp_path / "run"


@pytest.fixture(scope="module")
def queries() -> Iterator[Queries]:
    with Queries(memory_mb=256) as queries:
        yield queries


def still_answers(queries: Queries, run: Path) -> bool:
    return queries.ask(run, "select count(*) from trajectories").rows() == [[1]]


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENT_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def once_busy(queries: Queries, act: Callable[[], None]) -> None:
    """Act while a query runs: it has used processor time since it was asked."""

    def watch() -> None:
        wait_for(lambda: bool(queries.busy))
        pid = queries.busy[0].pid
        begun_s = cpu_s(pid)
        wait_for(lambda: cpu_s(pid) > begun_s + 0.1)
        act()

    threading.Thread(target=watch, daemon=True).start()


def cpu_s(pid: int) -> float:
    """Processor time that a process has used; where there is no /proc, time that has gone by."""
    if sys.platform != "linux":
        return time.monotonic()
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def children(parent: int) -> list[int]:
    found = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for path in found for pid in path.read_text().split()]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(
    ("text", "timeout_s"),
    [
        # Those that fill memory have the time to do so; the others would only use it up.
        ("select length(repeat('x', 1000000000)) from range(1000)", 2),
        (DEAF, 2),
        ("select levenshtein(repeat('x', 1000000), repeat('y', 1000000))", 0.5),
        ("select printf('%2000000000d', 1)", 2),
        ("select list_transform(range(200000000), lambda x: null)", 2),
        (
            "with recursive t(x) as (select 'x' union all select x || x from t)"
            " select max(x) from t",
            2,
        ),
        (ENDLESS, 0.5),
    ],
)
def test_no_query_takes_more_time_or_memory_than_it_may(
    text: str, timeout_s: float, queries: Queries, run: Path
) -> None:
    still_answers(queries, run)
    process = queries.idle[0].pid
    most = 0

    def watch() -> None:
        nonlocal most
        while not done.wait(0.02):
            for line in status(process):
                if line.startswith("VmHWM"):
                    most = max(most, int(line.split()[1]) // 1024)

    done = threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.monotonic()
    with pytest.raises(
        RunError, match=rf"longer than {timeout_s} s|more memory than the 256 MB"
    ) as caught:
        queries.ask(run, text, timeout_s=timeout_s)
    took = time.monotonic() - begun
    done.set()
    watcher.join()
    assert took < timeout_s + 1 + 10, f"{took:.1f} s until: {caught.value}"
    assert most < 256 + 1024
    assert still_answers(queries, run)


def status(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []


def test_an_answer_that_is_too_large_says_what_to_ask_for(run: Path) -> None:
    with Queries() as queries:
        with pytest.raises(RunError, match=r"one row of the answer takes \d+ MB.*left\(text, 1000"):
            queries.ask(run, "select repeat('x', 100000000)")
        # A null takes no byte in Arrow, but a place in a list of Python.
        with pytest.raises(RunError, match="one row of the answer"):
            queries.ask(run, "select list_transform(range(10000000), lambda x: null)")
        answer = queries.ask(run, "select repeat('y', 1000000) from range(200)")
        assert 10 < answer.table.num_rows < 100
        assert answer.truncated
        assert queries.idle[0].alive()


def test_all_rows_of_an_answer_may_not_fill_the_memory_of_the_one_who_asked(monkeypatch) -> None:
    monkeypatch.setattr(child, "_WHOLE_BYTES", 10**6)
    table = pa.table({"text": ["y" * 1000] * 2000})
    with pytest.raises(RunError, match="the answer is larger than the"):
        child.AnswerWriter(lambda head, body=b"": None, limit=None).rows(table.to_reader())
    bodies: list[bytes] = []
    reply = child.AnswerWriter(lambda head, body=b"": bodies.append(bytes(body)), limit=None)
    reply.rows(table.slice(0, 500).to_reader())
    assert len(b"".join(bodies)) > 500_000


@pytest.mark.parametrize(
    "text",
    [
        "select '" + "x" * 10_000_000 + "'",
        "select " + "x" * 10_000_000,
        "select " + "(" * 100_000 + "1" + ")" * 100_000,
        "select " + "1, " * 30_000 + "1",
        "\x00" * 1000,
        "select '\ud800'",
        ";" * 1_000_000,
    ],
    ids=lambda text: repr(text[:20]),
)
def test_text_of_any_size_and_kind_is_answered_or_refused(
    text: str, queries: Queries, run: Path
) -> None:
    begun = time.monotonic()
    with contextlib.suppress(RunError):
        queries.ask(run, text, timeout_s=5)
    assert time.monotonic() - begun < PATIENT_S
    assert still_answers(queries, run)


def test_two_queries_run_at_once_and_a_third_waits(queries: Queries, run: Path) -> None:
    enough = threading.Event()
    said: list[str] = []

    def ask() -> None:
        try:
            queries.ask(run, ENDLESS, timeout_s=10 * PATIENT_S, given_up=enough)
        except RunError as error:
            said.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    try:
        threads[0].start()
        wait_for(lambda: len(queries.busy) == 1)
        assert still_answers(queries, run)
        threads[1].start()
        wait_for(lambda: len(queries.busy) == 2)
        with pytest.raises(RunError, match=r"2 other queries have been running for 0\.2 s"):
            queries.ask(run, "select 1", timeout_s=0.2)
    finally:
        enough.set()
        for thread in threads:
            thread.join()
    assert [text.partition(",")[0] for text in said] == ["the query was given up"] * 2
    assert still_answers(queries, run)


def test_a_question_that_is_given_up_frees_its_process(queries: Queries, run: Path) -> None:
    for text in (ENDLESS, DEAF):
        given_up = threading.Event()
        once_busy(queries, given_up.set)
        with pytest.raises(RunError, match="nobody waits"):
            queries.ask(run, text, timeout_s=PATIENT_S, given_up=given_up)
        assert not queries.busy
    assert still_answers(queries, run)


def test_a_process_that_is_killed_is_replaced(queries: Queries, run: Path) -> None:
    still_answers(queries, run)
    os.kill(queries.idle[0].pid, signal.SIGKILL)
    wait_for(lambda: not queries.idle[0].alive())
    assert still_answers(queries, run)
    process = queries.idle[0].pid
    once_busy(queries, lambda: os.kill(process, signal.SIGKILL))
    with pytest.raises(RunError, match=r"was killed by another process.*ask again"):
        queries.ask(run, ENDLESS, timeout_s=PATIENT_S)
    process = queries.idle[0].pid
    once_busy(queries, lambda: os.kill(process, signal.SIGSEGV))
    with pytest.raises(RunError, match="ended with SIGSEGV"):
        queries.ask(run, ENDLESS, timeout_s=PATIENT_S)
    assert still_answers(queries, run)


def test_nothing_is_left_when_all_is_closed_in_the_midst_of_a_query(run: Path) -> None:
    queries = Queries()
    said: list[str] = []

    def ask() -> None:
        try:
            queries.ask(run, DEAF, timeout_s=PATIENT_S)
        except RunError as error:
            said.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    wait_for(lambda: bool(queries.busy))
    process = queries.busy[0].pid
    queries.close()
    thread.join(PATIENT_S)
    assert said
    assert is_gone(process)
    with pytest.raises(RunError, match="given up"):
        queries.ask(run, "select 1")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("text", [None, ENDLESS, DEAF])
def test_a_process_ends_with_a_server_that_is_killed(text: str | None, run: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "from agentrl.inspect.query.sql import Queries\n"
        "queries = Queries()\n"
        "queries.ask(Path(sys.argv[1]), 'select 1')\n"
        "print('ready', flush=True)\n"
        "queries.ask(Path(sys.argv[1]), sys.argv[2], timeout_s=600) if sys.argv[2] else None\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(run), text or ""]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        (process,) = children(server.pid)
        begun_s = cpu_s(process)
        if text:
            wait_for(lambda: cpu_s(process) > begun_s + 0.1)
        assert not is_gone(process)
        server.kill()
    wait_for(lambda: is_gone(process))


def test_a_browser_that_goes_away_ends_its_query_and_ctrl_c_ends_all(run: Path) -> None:
    code = "from agentrl.cli import main; main()"
    command = [sys.executable, "-c", code, "inspect", str(run), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found
            address = f"{found[0]}api/sql"
            for patience_s in (1.5, 0.5, 0.5):
                # More than may run at once, so one that is not ended would hold up what follows.
                with pytest.raises(httpx.ReadTimeout):
                    httpx.get(address, params={"run": "run", "q": ENDLESS}, timeout=patience_s)
            query = {"run": "run", "q": "select count(*) from trajectories"}
            answer = httpx.get(address, params=query, timeout=PATIENT_S)
            assert answer.json()["rows"] == [[1]]
            assert answer.json()["took_ms"] < 20_000
            with pytest.raises(httpx.ReadTimeout):
                httpx.get(address, params={"run": "run", "q": ENDLESS}, timeout=0.5)
            processes = children(server.pid)
            server.send_signal(signal.SIGINT)
            assert server.wait(PATIENT_S) == 130
            wait_for(lambda: all(map(is_gone, processes)))
        finally:
            server.kill()
