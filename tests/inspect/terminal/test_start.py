"""Start of the terminal views: in a real terminal, and where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import find_runs
from agentrl.inspect.terminal.start import show_terminal


def readers(*roots: Path) -> list[RunReader]:
    return [RunReader(run) for run in find_runs(roots)]


def test_where_there_is_no_terminal_a_list_is_printed(
    recorded_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show_terminal(readers(recorded_run))
    text = capsys.readouterr().out
    assert "this is no terminal" in text
    assert "recorded: finished, 4 steps" in text
    assert "train step 4: 16 rollouts of 4 tasks, reward" in text


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux, a terminal of its own")
def test_it_draws_in_a_real_terminal_and_leaves_it_clean(recorded_run: Path) -> None:
    def tmux(*words: str) -> str:
        command = ["tmux", "-L", f"agentrl-{os.getpid()}", "-f", "/dev/null", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def wait(part: str) -> str:
        deadline = time.monotonic() + 60
        while part not in (shown := tmux("capture-pane", "-p")):
            assert time.monotonic() < deadline, shown
            time.sleep(0.2)
        return shown

    program = (
        "import sys; from pathlib import Path\n"
        "from agentrl.inspect.read.reader import RunReader\n"
        "from agentrl.inspect.read.runs import find_runs\n"
        "from agentrl.inspect.terminal.start import show_terminal\n"
        "show_terminal([RunReader(run) for run in find_runs([Path(sys.argv[1])])])\n"
    )
    tmux("new-session", "-d", "-x", "80", "-y", "24")
    try:
        tmux(
            "set-buffer",
            f"exec 3>&1; {sys.executable} -c '{program}' {recorded_run}; echo left=$?\n",
        )
        tmux("paste-buffer")
        wait("recorded  finished")
        tmux("send-keys", "Enter")
        wait("train step 4")
        tmux("send-keys", "q")
        assert "train step 4" not in wait("left=0")
    finally:
        tmux("kill-server")
