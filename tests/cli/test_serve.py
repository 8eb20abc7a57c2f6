"""`agentrl serve` as it is typed; real servers are in `tests/serving`."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from agentrl.cli import main


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["serve", *map(str, words)])
    assert caught.value.code == 2
    return capsys.readouterr().err


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "does not exist" in refused(capsys, tmp_path / "nowhere")
    assert "without config.json" in refused(capsys, tmp_path)


def test_options_that_cannot_be(capsys: pytest.CaptureFixture[str], checkpoint: Path) -> None:
    assert "expected key=value, got 'fast'" in refused(capsys, checkpoint, "fast")
    assert "serving.kv_cache_gb" in refused(capsys, checkpoint, "kv_cache_gb=much")
    assert "agentrl serve: --port" in refused(capsys, checkpoint, "port=3")


def test_a_port_in_use(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, unused_tcp_port: int
) -> None:
    """Fails if a server is started that cannot listen, or listens beside another."""
    with socket.create_server(("127.0.0.1", unused_tcp_port)):
        said = refused(capsys, checkpoint, "--port", unused_tcp_port)
    assert f"127.0.0.1:{unused_tcp_port}: Address already in use" in said
