"""The page of a run that trains: a command by default, a server of its own when asked for."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from pathlib import Path

import pytest

from agentrl.cli.console import run_page as run_page_module
from agentrl.cli.console.run_page import run_page


def waited(said: list[str]) -> str:
    deadline = time.monotonic() + 60
    while not said and time.monotonic() < deadline:
        time.sleep(0.02)
    return said[0]


def test_a_command_is_named_once_and_nothing_is_started() -> None:
    said: list[str] = []
    with run_page(served=False) as page:
        page.open(Path("runs/my run"), said.append)
        page.open(Path("runs/my run"), said.append)
    assert said == ["watch it: agentrl inspect 'runs/my run'"]


def test_the_page_is_served_on_this_machine_until_the_run_ends(tmp_path: Path) -> None:
    """Fails if the server can be reached from elsewhere, shows another run, or outlives its run."""
    run, said = tmp_path / "a run", list[str]()
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    with run_page(served=True) as page:
        page.open(run, said.append)
        address = waited(said).removeprefix("watch it: ")
        assert address.startswith("http://127.0.0.1:")
        assert address.endswith("/#/run?run=a%20run")
        api = address.partition("#")[0] + "api/runs"
        with urllib.request.urlopen(api) as answer:
            assert [one["path"] for one in json.load(answer)] == [str(run)]
        assert page._child is not None
        pid = page._child.pid
        assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)
    assert not Path(f"/proc/{pid}").exists()
    assert len(said) == 1


@pytest.mark.parametrize("child", ["nowhere.at_all:serve", "agentrl.inspect.web.child:serve_run"])
def test_a_page_that_cannot_be_served_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: str
) -> None:
    """Fails if the run hears of it in another way: what is no run has no page."""
    monkeypatch.setattr(run_page_module, "_CHILD", child)
    said: list[str] = []
    with run_page(served=True) as page:
        page.open(tmp_path, said.append)
        text = waited(said)
    assert text.startswith("the page of the run is not served (")
    assert text.endswith(f"watch it: agentrl inspect {tmp_path}")
