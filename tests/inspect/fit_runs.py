"""Small real fits, as `agentrl fit` leaves them: pairs, a reward model, conversations, verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import FoundRun
from agentrl.metrics.sinks import read_metrics
from tests.fit.fit_project import pairs, write_fit, write_rows
from tests.inspect.conftest import HOSTILE
from tests.runtime.tiny_project import agentrl


def train_fit(folder: Path, kind: str, **changes: Any) -> Path:
    """A finished fit with hostile text in its first held-out example; returns its run directory."""
    settings = {"eval__every_steps": 2, "train__steps": 4, **changes}
    path = write_fit(folder, kind, **settings)
    if kind != "sft":
        held = pairs(5, prompt="tell")
        held[0] |= {"id": "<i>odd</i> id", "prompt": HOSTILE, "chosen": HOSTILE + "!"}
        write_rows(folder / "held.jsonl", held)
    status, text = agentrl(folder / "fit.log", "fit", path)
    assert status == 0, text
    return folder / "runs" / "fit"


def reader_of(run: Path) -> RunReader:
    return RunReader(FoundRun(id="fit", path=run))


def logged(run: Path, step: int) -> dict[str, float]:
    """Everything that was logged at a step."""
    found: dict[str, float] = {}
    for line in read_metrics(run / "metrics.jsonl"):
        if line["step"] == step:
            found |= line
    return found
