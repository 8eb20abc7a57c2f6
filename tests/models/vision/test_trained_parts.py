"""Which parameters of a vision-language model are trained: `train.freeze` and `train.lora`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentrl.config.schema import ModelSection
from agentrl.config.training import LoraSection, TrainSection
from agentrl.errors import ConfigError
from agentrl.models.stored_form import StoredForm
from agentrl.runtime.assembly.weight_stream import sent_weights
from agentrl.sync.adapters import Merger
from agentrl.train.backends.torch_backend import TorchBackend
from agentrl.train.model.freeze import freeze_parts
from agentrl.train.model.load import load_trained
from agentrl.train.model.lora import adapters, add_adapters, base_weights, merged_weights
from tests.models.vision.tiny_seeing import FAMILIES, checkpoint, model_of, seeing_model

TOWERS = dict.fromkeys(FAMILIES, ".visual.") | {
    "smolvlm": ".vision_model.",
    "gemma3": ".vision_tower.",
    "llava_onevision": ".vision_tower.",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_vision_tower_is_frozen_by_name_and_layers_by_pattern(
    name: str, tmp_path: Path
) -> None:
    model = seeing_model(name, tmp_path)
    freeze_parts(model, ["vision_tower", "*.layers.0"])
    frozen = {n for n, param in model.named_parameters() if not param.requires_grad}
    assert frozen == {
        n
        for n, _ in model.named_parameters()
        if TOWERS[name] in n or (".layers.0." in n and TOWERS[name] not in n)
    }


@pytest.mark.parametrize("name", FAMILIES)
def test_adapters_are_on_the_language_part_alone(name: str, tmp_path: Path) -> None:
    model = seeing_model(name, tmp_path)
    add_adapters(model, LoraSection(rank=2), base="anywhere")
    trained = [n for n, param in model.named_parameters() if param.requires_grad]
    assert any(".q_proj." in n for n in trained)
    outside = (TOWERS[name], "connector", "projector")
    assert not any(part in n for n in trained for part in outside)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_engine_merges_adapters_into_files_with_older_names(name: str, tmp_path: Path) -> None:
    """Fails if a weight is looked up by its name in the model alone: Qwen2-VL has other files."""
    section = ModelSection(path=str(checkpoint(name, tmp_path)), dtype="float32", device="cpu")
    train = TrainSection(learning_rate=1e-3, lora=LoraSection(rank=2, sync="adapters"))
    pretrained = load_trained(section, train, checkpoint=None)
    model: Any = pretrained.model
    for adapter in adapters(model):
        torch.nn.init.normal_(adapter.up)
    backend = TorchBackend(model, train=train, gradient_checkpointing=False)
    trainer: Any = SimpleNamespace(backend=backend, weights=backend.weights)
    sent = sent_weights(train.lora, model, trainer, backend="disk")
    found = dict(Merger(str(tmp_path)).whole(sent()))
    form = StoredForm(model, [name for name, _ in base_weights(model)])
    wanted = dict(form(merged_weights(model)))
    assert list(found) == list(wanted)
    assert all(torch.equal(weight, wanted[name]) for name, weight in found.items())
    assert any(".lora_A." in name for name, _ in sent())


def test_what_cannot_be_frozen_is_refused_with_what_can(tmp_path: Path) -> None:
    model = seeing_model("smolvlm", tmp_path)
    with pytest.raises(ConfigError, match=r"no parameter of SmolVLM\w+ matches .*vision_model"):
        freeze_parts(model, ["model.vision_modle"])
    with pytest.raises(ConfigError, match="leaves no parameter to train"):
        freeze_parts(model, ["*"])
    with pytest.raises(ConfigError, match="reads text only and has no vision_tower"):
        freeze_parts(model_of("qwen2_vl"), ["vision_tower"])
    with pytest.raises(ValueError, match=r"with train.lora all weights of the model stay"):
        TrainSection(lora=LoraSection(rank=2), freeze=("vision_tower",))
