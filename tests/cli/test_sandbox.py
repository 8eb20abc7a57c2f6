"""`agentrl sandbox` as a user types it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli.sandbox import app
from agentrl.errors import ConfigError, SandboxUnavailable


@pytest.fixture
def no_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_gc_without_a_daemon_says_so_and_does_the_rest(no_daemon: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    folder = no_daemon / f"agentrl-{ended.pid}-{'a' * 16}"
    folder.mkdir()
    dry = CliRunner().invoke(app, ["gc", "--dry-run"])
    assert dry.exit_code == 0
    assert f"would remove folder {folder}" in dry.output
    assert folder.exists()
    done = CliRunner().invoke(app, ["gc"])
    assert done.exit_code == 0
    assert f"removed folder {folder}: process {ended.pid} has ended" in done.output
    assert "no containers were looked for" in done.output
    assert "/nowhere/docker.sock" in done.output
    assert "no pods were looked for: kubernetes: there is no kubeconfig at" in done.output
    assert not folder.exists()
    # Fails if it says so of containers, too, which nobody has looked for.
    assert "\nelsewhere nothing is left behind" in CliRunner().invoke(app, ["gc"]).output


def test_list_shows_every_backend_and_why_one_does_not_work(no_daemon: Path) -> None:
    shown = CliRunner().invoke(app, ["list"])
    assert shown.exit_code == 0
    for word in ("docker", "bubblewrap", "userns", "process", "systemctl start docker"):
        assert word in shown.output
    assert "kubernetes does not work here: kubernetes: there is no kubeconfig" in shown.output


def test_list_starts_nothing_in_a_cluster(no_daemon: Path) -> None:
    # Fails if looking at what there is makes pods in whatever cluster a kubeconfig leads to.
    config = no_daemon / "no-kubeconfig"
    config.write_text("not read")
    shown = CliRunner().invoke(app, ["list"])
    assert f"not tried, because it would start a pod in the cluster of {config}" in shown.output


def test_check_refuses_options_that_a_backend_does_not_have(no_daemon: Path) -> None:
    # Fails if --image is dropped in silence, and another sandbox is proved than the one meant.
    found = CliRunner().invoke(app, ["check", "process", "--image", "python:3.12"])
    assert isinstance(found.exception, ConfigError)
    assert "only docker and kubernetes have images" in str(found.exception)
    found = CliRunner().invoke(app, ["check", "docker", "--image", "python:3.12"])
    assert isinstance(found.exception, SandboxUnavailable)
    assert "no Docker daemon at unix:///nowhere/docker.sock" in str(found.exception)
