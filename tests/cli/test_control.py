"""What `agentrl control` refuses before it looks at a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.cli import control
from agentrl.errors import ConfigError, RunError


@pytest.mark.parametrize(
    ("what", "server", "why"),
    [
        ("fly", "", "a run cannot 'fly'; expected continue, stop, add-server, remove-server"),
        ("add-server", "", "add-server needs the address of a server, got ''"),
        ("stop", "http://h:1", "stop takes no server, got 'http://h:1'"),
    ],
)
def test_words_that_do_not_fit_are_named(tmp_path: Path, what: str, server: str, why: str) -> None:
    with pytest.raises(ConfigError) as error:
        control.command(tmp_path, what, server)
    assert why in str(error.value)


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        control.command(tmp_path, "add-server", "http://h:1")
