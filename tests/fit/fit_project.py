"""A fit in a temporary folder: the tiny model of `tiny_project`, conversations and pairs."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from agentrl.disk.checkpoint import latest_checkpoint
from agentrl.metrics.sinks import read_metrics
from tests.runtime.tiny_project import run_agentrl, write_changed, write_model
from tests.warm_processes import warm_context

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def conversations(count: int = 7) -> list[dict[str, Any]]:
    """Short ones, every third with a call of a tool."""
    rows: list[dict[str, Any]] = []
    for number in range(count):
        said: list[dict[str, Any]] = [{"role": "assistant", "content": f"it is {number}"}]
        if number % 3 == 0:
            call = {"name": "add", "arguments": {"a": number}}
            said = [
                {"role": "assistant", "content": "", "tool_calls": [{"function": call, "id": "c"}]},
                {"role": "tool", "content": str(number), "tool_call_id": "c"},
                *said,
            ]
        asked = {"role": "user", "content": f"say {number}"}
        rows.append({"id": f"c{number}", "messages": [asked, *said], "tools": [ADD]})
    return rows


def pairs(count: int = 7, *, prompt: str = "say") -> list[dict[str, Any]]:
    """Vowels are better than consonants."""
    rng = random.Random(0)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        row = {
            "id": f"p{number}",
            "prompt": f"{prompt} {number}",
            "chosen": "".join(rng.choices("aeiou", k=rng.randint(2, 9))),
            "rejected": "".join(rng.choices("xyzkq", k=rng.randint(2, 9))),
            "margin": rng.random(),
            "label_probability": rng.uniform(0.6, 1.0),
        }
        rows.append(row)
    return rows


def verdicts(count: int = 7, *, prompt: str = "say") -> list[dict[str, Any]]:
    """Vowels are good, consonants are not."""
    rng = random.Random(0)
    return [
        {
            "id": f"v{number}",
            "prompt": f"{prompt} {number}",
            "completion": "".join(rng.choices(("aeiou", "xyzkq")[number % 2], k=5)),
            "label": number % 2 == 0,
        }
        for number in range(count)
    ]


def write_kto_fit(folder: Path, **changes: Any) -> Path:
    """As `write_fit`, of answers with a verdict."""
    path = write_fit(
        folder, "dpo", objective={"kind": "dpo", "loss": "kto"},
        **{"data__examples_per_step": 4, **changes},
    )  # fmt: skip
    for name, count in (("train", 8), ("held", 4)):
        rows = [{**row, "id": f"{name}-{row['id']}"} for row in verdicts(count)]
        write_rows(folder / f"{name}.jsonl", rows)
    return path


def write_fit(folder: Path, kind: str = "sft", **changes: Any) -> Path:
    """Write model, data and fit file; returns the fit file.

    Args:
        folder: made if needed.
        kind: of the objective.
        changes: dotted keys with `__` for `.`, as in `train__steps=3`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model").exists():
        write_model(folder / "model")
    make = conversations if kind == "sft" else pairs
    for name, count in (("train", 7), ("held", 3)):
        rows = make(count)
        for row in rows:
            row["id"] = f"{name}-{row['id']}"
        write_rows(folder / f"{name}.jsonl", rows)
    data: dict[str, Any] = {
        "run": {"name": "fit", "dir": str(folder / "runs"), "seed": 3},
        "model": {"path": str(folder / "model"), "dtype": "float32", "device": "cpu"},
        "data": {"source": "train.jsonl", "examples_per_step": 3, "epochs": 2},
        "objective": {"kind": kind},
        "train": {
            "learning_rate": 1e-3,
            "micro_batch_tokens": 512,
            "backend": {"kind": "torch", "lanes": 2},
        },
        "eval": {"datasets": {"held": {"source": "held.jsonl"}}},
        "checkpoint": {"every_steps": 2},
    }
    return write_changed(folder / "fit.yaml", data, changes)


def weights(run: Path) -> dict[str, torch.Tensor]:
    """Of the latest checkpoint."""
    checkpoint = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    return load_file(checkpoint.path / "model.safetensors")


def assert_same_fit(run: Path, other: Path) -> None:
    """Both ended with the same bits, and logged the same steps with the same losses, each once."""
    ours, theirs = weights(run), weights(other)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert trained_steps(run) == trained_steps(other)
    assert not list(run.rglob(".making-*"))


def trained_steps(run: Path) -> list[tuple[int, float, float]]:
    """(step, loss, examples) of each line of metrics.jsonl that is one of a step."""
    lines = list(read_metrics(run / "metrics.jsonl"))
    found = []
    for line in lines:
        losses = [key for key in line if key in ("sft/loss", "dpo/loss", "rm/loss")]
        if losses:
            found.append((line["step"], line[losses[0]], line["fit/examples"]))
    return found


LOSS = '''
"""The usual loss; says that it was called."""

import sys

from agentrl.fit.losses.pair_losses import sigmoid


def loss(inputs):
    sys.audit("test.loss", "called")
    return sigmoid(inputs)
'''


def kill_at(out: Path, event: str, part: str, times: int, *words: object) -> int:
    """Run `agentrl WORDS` in a process that dies of `kill -9` at some event.

    Args:
        out: gets what it prints.
        event: audit event of Python (`open`, `os.rename`), or `test.loss` of `LOSS`.
        part: in one of the first two arguments of the event.
        times: at the so many-th event.
        words: of the command line.

    Returns:
        Exit status: -9 if it got there.
    """
    process = warm_context().Process(
        target=_die_at, args=(event, part, times, tuple(map(str, words)), str(out))
    )
    process.start()
    process.join(600)
    assert process.exitcode is not None, out.read_text()
    return process.exitcode


def _die_at(event: str, part: str, times: int, words: tuple[str, ...], out: str) -> None:
    seen = 0

    def hook(name: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if name == event and any(part in str(arg) for arg in args[:2]):
            seen += 1
            if seen == times:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    run_agentrl(words, out)
