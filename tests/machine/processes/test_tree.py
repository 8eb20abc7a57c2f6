"""A command below `tree` leaves nothing, and its end is the end of `tree`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from agentrl.machine.processes.tree import children_of, command, descendants_of


def run(script: str, grace_s: float = 5.0) -> subprocess.Popen[bytes]:
    words = [*command(grace_s), "sh", "-c", script]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 130", 130), ("kill -SEGV $$", -11), ("kill -KILL $$", -9)],
)
def test_it_ends_as_its_command_does(script: str, status: int) -> None:
    with run(script) as process:
        assert process.wait(120) == status


@pytest.mark.parametrize("end", ["pipe", "SIGTERM", "command"])
def test_nothing_of_the_tree_is_left(end: str) -> None:
    # Two generations, in sessions of their own, of which the second ignores SIGTERM.
    deaf = "trap '' TERM; sleep 4321 & sleep 4321 & wait"
    rest = "exit 0" if end == "command" else "wait"
    with run(f'setsid sh -c "{deaf}" & echo $!; sleep 0.5; {rest}', grace_s=0.5) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        if end == "pipe":
            process.stdin.close()
        elif end == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        # The pipe is closed once all who had it are gone.
        assert process.stdout.read() == b""
        process.wait(120)
    assert not children_of(process.pid)


def test_ended_children_are_not_counted() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert child.pid not in children_of(os.getpid())


def test_descendants_are_all_generations() -> None:
    nested = "import subprocess, sys; subprocess.run(['sleep', '60'], stdout=sys.stdout)"
    with subprocess.Popen([sys.executable, "-c", nested]) as child:
        while not children_of(child.pid):
            assert child.poll() is None
        (grandchild,) = children_of(child.pid)
        assert {child.pid, grandchild} <= set(descendants_of(os.getpid()))
        os.kill(grandchild, signal.SIGKILL)
