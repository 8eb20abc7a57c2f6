"""A preflight comes to its end whatever an environment does, and leaves no process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agentrl.machine.processes.tree import children_of
from agentrl.preflight.runner import StillTime
from agentrl.preflight.watchdog import Watched, run_watched
from agentrl.types.finding import Status
from tests.runtime.tiny_project import agentrl, write_project

pytestmark = pytest.mark.slow

PLANS = "tests.preflight.troubled_plans"

ENVS = """
import signal
import time

from agentrl import AgentInstance, Observation, StepResult


class Slow(AgentInstance):
    def __init__(self, where="step"):
        self.where = where

    async def reset(self, task):
        if self.where == "reset":
            time.sleep(500)
        return Observation(content=str(task.prompt))

    async def step(self, action):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # only the main thread may
        if self.where == "step":
            time.sleep(500)
        return StepResult(rewards=0.5, done=True)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    file = write_project(tmp_path, env__target="envs.py:Slow", rollout__env_timeout_s=0.5)
    (tmp_path / "envs.py").write_text(ENVS)
    return file


def test_preflight_names_what_blocks_and_goes_on(project: Path, tmp_path: Path) -> None:
    """Fails also if the checks run in another thread than the main one.

    An environment may set alarms, as in training; elsewhere that is an error, and nothing blocks.
    """
    status, text = agentrl(tmp_path / "out", "preflight", project, "--json")
    assert status == 1
    checks = {item["name"]: item for item in json.loads(text[text.index("{") :])["checks"]}
    found = checks["reward test"]
    assert found["status"] == "fail", text
    who = "the environment or a reward function blocks the event loop: Slow.step ("
    assert who in found["detail"]
    line = ENVS.splitlines().index('        if self.where == "step":') + 2
    assert f"envs.py:{line})" in found["detail"]
    # Half a second and the margin, in the time that the machine ran it.
    assert re.search(r"has not awaited for [56] s", found["detail"])
    assert "asyncio.to_thread" in found["fix"]
    assert checks["prompts"]["status"] == "ok"
    # Those after it come as well, and each once.
    assert {"batch", "early stop", "memory", "budget"} <= checks.keys()
    assert text.count('"reward test"') == 1


def test_a_dry_run_does_not_wait_for_a_reset_that_blocks(project: Path, tmp_path: Path) -> None:
    status, text = agentrl(
        tmp_path / "out", "train", project, "--dry-run", "env.args={where: reset}"
    )
    assert status == 2
    assert "blocks the event loop" in text
    assert "budget" in text


def test_what_the_machine_does_not_run_stands_not_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a thread that waits for a processor, or is looked at late, is said to block."""
    still = StillTime()
    turn = time.monotonic()
    still.tick(turn)
    monkeypatch.setattr(time, "monotonic", lambda: turn + 100.0)  # as on a machine that stood still
    assert still.tick(turn) < 1  # it computes, and has used no such time
    monkeypatch.undo()
    before = time.thread_time()
    while time.thread_time() < before + 0.1:
        pass
    assert still.tick(turn) >= 0.1
    assert still.tick(turn + 1) == 0

    ticks: list[float] = []

    def watch() -> None:
        while len(ticks) < 5:
            time.sleep(0.1)
            ticks.append(still.tick(turn))

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()  # asleep, which counts as long as it lasts
    assert ticks[0] <= 0.2
    assert ticks[4] - ticks[0] >= 0.3


STILL = ("keeps_the_lock", "stops")
"""Troubles that the process of the checks cannot end itself."""


def _run(trouble: str, *, memory_share: float = 0.9, still_s: float = 0.5) -> Watched:
    """Run a plan of `troubled_plans`."""
    arguments = {"trouble": trouble, "still_s": still_s}
    return run_watched(
        f"{PLANS}:plan",
        arguments=arguments,
        memory_share=memory_share,
        margin_s=0.5 if trouble in STILL else 60.0,
    )


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("exits", "the process ended with status 7 while this was tried"),
        ("forks_and_exits", "the process ended with status 7 while this was tried"),
        ("crashes", "the process was killed by SIGSEGV while this was tried"),
        ("is_killed", "SIGKILL, most likely as memory ran out while this was tried"),
        ("sleeps", "the environment blocks the event loop: sleeps ("),
        ("keeps_the_lock", "has stopped every thread for"),
        ("stops", "has stopped every thread for"),
        ("fails", "ValueError: one that is found"),
    ],
)
def test_what_is_wrong_is_named_and_the_rest_is_checked(trouble: str, words: str) -> None:
    before = children_of(os.getpid())
    checks = _run(trouble).checks
    assert words in checks[0].detail
    assert [check.name for check in checks] == ["prompts", "batch"]
    assert [check.status for check in checks] == [Status.FAIL, Status.OK]
    assert children_of(os.getpid()) == before


def test_memory_has_a_bound() -> None:
    check = _run("fills_memory", memory_share=0.03, still_s=60.0).checks[0]
    assert re.search(r"fills_memory \(.*\) has filled .* of memory that were free", check.detail)


def test_a_pipe_that_nobody_writes_to_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "rows")
    monkeypatch.setenv("TROUBLED_PIPE", str(tmp_path / "rows"))
    check = run_watched(f"{PLANS}:reads_rows", arguments={}).checks[0]
    assert "reads_a_pipe (" in check.detail
    assert "has not come back for" in check.detail
    assert "a pipe that nobody writes to" in check.fix


@pytest.mark.parametrize("plan", ["waits", "leaves_a_thread"])
def test_a_line_that_only_waits_ends_in_time(plan: str) -> None:
    checks = run_watched(f"{PLANS}:{plan}", arguments={}).checks
    assert "not done in 0 s" in checks[0].detail


def test_what_an_environment_prints_is_not_in_the_output(capfd: pytest.CaptureFixture[str]) -> None:
    run_watched(f"{PLANS}:waits", arguments={})
    _run("says_nothing")
    said = capfd.readouterr()
    assert said.out == ""
    assert "said by an environment" in said.err


def test_a_preflight_that_is_done_is_not_interrupted(capfd: pytest.CaptureFixture[str]) -> None:
    # Fails if SIGTERM still interrupts the process of the checks once it has sent its answers: a
    # traceback stood below every report.
    assert run_watched(f"{PLANS}:ends_slowly", arguments={}).checks[0].status is Status.OK
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("trouble", "end", "status"),
    [
        ("sleeps", signal.SIGINT, -signal.SIGINT),
        ("keeps_the_lock", signal.SIGTERM, -signal.SIGINT),
        ("sleeps", signal.SIGKILL, -9),
        ("keeps_the_lock", signal.SIGKILL, -9),
    ],
)
def test_however_it_ends_it_leaves_no_process(
    trouble: str, end: signal.Signals, status: int
) -> None:
    program = (
        "from agentrl.preflight.watchdog import run_watched\n"
        f"run_watched('{PLANS}:plan', arguments={{'trouble': {trouble!r}, 'still_s': 300}})"
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as run:
        mine = _until_in_trouble(run.pid)
        run.send_signal(end)
        run.wait(120)
    assert run.returncode == status
    deadline = time.monotonic() + 60  # nobody waits for the rest after kill -9
    while left := [process for process in mine if Path(f"/proc/{process}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def _until_in_trouble(process: int) -> set[int]:
    """Wait for the marker that a trouble leaves, a program; returns all processes below."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        mine = _below(process)
        if any(_is(each, "4321") for each in mine):
            return mine
        time.sleep(0.1)
    raise AssertionError("it never came to its trouble")


def _below(process: int) -> set[int]:
    found = children_of(process)
    return found.union(*map(_below, found))


def _is(process: int, word: str) -> bool:
    try:
        return word in Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return False
