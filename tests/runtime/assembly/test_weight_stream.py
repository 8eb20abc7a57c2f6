"""What a push sends, and what the servers of a run with adapters start with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.config import RunConfig, parse_config
from agentrl.disk.model_source import model_source, served_source
from agentrl.runtime.assembly.weight_stream import sent_weights
from agentrl.sync.adapters import HEADER, AdapterWeights
from agentrl.train.backends.torch_backend import TorchBackend
from agentrl.train.model.load import load_trained
from agentrl.train.model.lora import has_adapters
from tests.runtime.tiny_project import write_model


def config_of(folder: Path, **lora: Any) -> RunConfig:
    if not (folder / "model").exists():
        write_model(folder / "model")
        write_model(folder / "checkpoint", seed=1)
    model = {"path": str(folder / "model"), "dtype": "float32", "device": "cpu"}
    return parse_config(
        {
            "env": {"target": "x:Y"},
            "dataset": {"source": "x.jsonl"},
            "model": model,
            "train": {"lora": lora or None},
        }
    )


@pytest.mark.parametrize(
    ("lora", "backend", "alone"),
    [
        ({"rank": 2}, "shm", True),
        ({"rank": 2}, "disk", True),
        ({"rank": 2}, "collective", True),
        ({"rank": 2}, "nccl", False),
        ({"rank": 2}, "inprocess", False),
        ({"rank": 2, "sync": "merged"}, "shm", False),
        ({}, "shm", False),
    ],
)
def test_adapters_go_alone_where_they_can_be_merged(
    tmp_path: Path, lora: dict[str, Any], backend: str, alone: bool
) -> None:
    """vLLM's own engine receives over nccl and knows nothing of a header."""
    config = config_of(tmp_path, **lora)
    model = load_trained(config.model, config.train, checkpoint=None).model
    held = TorchBackend(model, train=config.train, gradient_checkpointing=False)
    trainer: Any = SimpleNamespace(weights=held.weights, backend=held)
    sent = sent_weights(config.train.lora, model, trainer, backend=backend)
    assert isinstance(sent, AdapterWeights) == alone
    assert (next(iter(sent()))[0] == HEADER) == alone


def test_adapters_and_their_servers_begin_with_the_model_of_the_run(tmp_path: Path) -> None:
    """Also when the run goes on from a checkpoint, whose weights are merged already. Fails if
    either is given the checkpoint: the adapters would count twice, or the servers refuse them."""
    config = config_of(tmp_path, rank=2)
    checkpoint = str(tmp_path / "checkpoint")
    base = str(tmp_path / "model")
    assert served_source(config.model, config.train.lora, checkpoint=checkpoint) == base
    loaded = load_trained(config.model, config.train, checkpoint=checkpoint)
    assert (loaded.path, has_adapters(loaded.model)) == (base, True)


def test_without_adapters_both_begin_with_the_checkpoint(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    checkpoint = str(tmp_path / "checkpoint")
    assert served_source(config.model, config.train.lora, checkpoint=checkpoint) == checkpoint
    assert served_source(config.model, config.train.lora, checkpoint=None) == model_source(
        config.model
    )
    loaded = load_trained(config.model, config.train, checkpoint=checkpoint)
    assert (loaded.path, has_adapters(loaded.model)) == (checkpoint, False)
