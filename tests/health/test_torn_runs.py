"""What damaged files may not lead doctor into: a crash, a wait without end, a false verdict."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
import yaml

from agentrl.cli import main
from agentrl.health import diagnose, read_history


def doctor(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *map(str, words)])
    return int(ended.value.code or 0)


@pytest.fixture
def run(make_run) -> Path:
    return make_run(
        {"reward": [0.1 + 0.01 * n for n in range(30)], "critic/vf_loss": [0.5] * 30},
        texts=lambda step: f"an answer in plain words, number {step}",
    )


def test_values_that_this_version_refuses_are_left_out_of_the_config(run: Path) -> None:
    wrong = {
        "future": 1,
        "model": {"path": "somewhere"},
        "critic": {"warmup_steps": "x"},
        "train": {"learning_rate": "fast", "max_grad_norm": [1], "steps": 7},
        "rollout": {"retries": {"a": 1}},
    }
    (run / "config.yaml").write_text(yaml.safe_dump(wrong))
    history = read_history(run)
    assert history.config["train.steps"] == 7
    assert history.config["future"] == 1
    assert "critic.warmup_steps" not in history.config
    assert "train.learning_rate" not in history.config
    assert diagnose(history)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("more", [{"future": 1}, {}])
def test_a_threshold_that_is_no_number_is_a_note(
    run: Path, value: float, more: dict, capsys
) -> None:
    thresholds = {"kl_too_large/bound": value, "entropy_collapse/floor": 0.01}
    wrong = {**more, "health": {"thresholds": thresholds}}
    (run / "config.yaml").write_text(yaml.safe_dump(wrong))
    history = read_history(run)
    assert history.config["health.thresholds.entropy_collapse/floor"] == 0.01
    assert any(
        note.startswith("health.thresholds.kl_too_large/bound is ") for note in history.notes
    )
    assert doctor(run) in (0, 1)
    assert "kl_too_large/bound is" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml"])
def test_a_pipe_is_not_waited_for(run: Path, name: str) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    # Whoever does read it is not kept waiting, so that a mistake fails instead of hanging.
    threading.Thread(target=lambda: (run / name).write_bytes(b""), daemon=True).start()
    notes = read_history(run).notes
    os.close(os.open(run / name, os.O_RDONLY | os.O_NONBLOCK))
    assert f"{name} cannot be read: a named pipe, not a plain file" in notes


def test_without_metrics_nothing_is_called_healthy(run: Path, capsys) -> None:
    (run / "metrics.jsonl").write_bytes(os.urandom(1000).replace(b"\n", b""))
    doctor(run)
    text = capsys.readouterr().out
    assert "healthy" not in text
    assert "0 steps, not enough data yet; " in text
    doctor(run, "--json")
    assert json.loads(capsys.readouterr().out)["status"] == "unknown"


def test_steps_that_cannot_be_and_lines_that_are_too_long_are_left_out(run: Path) -> None:
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": -5, "reward": 9}\n{"step": 999999999999999999, "reward": 9}\n')
        # The part beyond what is read at once would be a record of its own.
        file.write(b'{"x": "' + b"a" * (2**20 - 7) + b'{"step": 40, "reward": 9}\n')
    history = read_history(run)
    assert history.metrics["reward"].steps[-1] == 30
    assert history.notes == ("metrics.jsonl: left out 3 lines that are torn or not ours",)
