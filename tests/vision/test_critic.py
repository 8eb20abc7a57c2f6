"""A critic that reads the images of the rows that it values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from agentrl.config.schema import CriticSection, ModelSection, TrainSection
from agentrl.errors import ConfigError
from agentrl.train.backends.torch_backend import TorchBackend
from agentrl.train.model.value_head import ValueModel, load_critic
from agentrl.types import TrajectoryGroup
from tests.train.tiny_llama import make_step, tiny_model
from tests.vision.seeing_rows import seeing_groups
from tests.vision.tiny_seeing import checkpoint, picture, reader_for


def values(critic: ValueModel, group: TrajectoryGroup) -> Tensor:
    """Values of the tokens of one group, with gradients."""
    train = TrainSection(learning_rate=1e-3)
    backend = TorchBackend(critic, train=train, gradient_checkpointing=False, lanes=1)
    step = make_step([group], micro_batch_tokens=1024, prefix_sharing=True)
    ((micro,),) = [update.micro_batches for update in step.updates]
    with backend.running():
        return backend.values(backend.to_tensors(micro))


@pytest.mark.parametrize("name", ["qwen2_vl", "smolvlm", "gemma3"])
def test_values_depend_on_pixels_and_teach_the_tower(name: str, tmp_path: Path) -> None:
    path = str(checkpoint(name, tmp_path / "model"))
    section = ModelSection(path=path, dtype="float32", device="cpu")
    (group, *_) = seeing_groups(name, tmp_path / "images")
    reader = reader_for(name, tmp_path / "images")
    critic = load_critic(CriticSection(), section, images=reader)
    torch.manual_seed(0)
    torch.nn.init.normal_(critic.value_head.weight)
    before = values(critic, group)
    before.sum().backward()
    towers = ("visual.", "vision_model.", "vision_tower.")
    tower = [p for n, p in critic.named_parameters() if any(part in n for part in towers)]
    assert tower[0].grad is not None
    assert tower[0].grad.abs().max() > 0
    # Another picture of the same size in the place of the first.
    other = picture(9)
    assert reader.expand(other).grid == group.trajectories[0].images[0].grid
    rows = [
        replace(row, images=(replace(row.images[0], digest=other.digest), row.images[1]))
        for row in group.trajectories
    ]
    changed = values(critic, replace(group, trajectories=tuple(rows)))
    assert (changed - before).abs().max() > 1e-4


def test_a_critic_of_text_is_refused_beside_a_policy_that_sees(tmp_path: Path) -> None:
    path = str(checkpoint("qwen2_vl", tmp_path / "model"))
    tiny_model(torch.float32).save_pretrained(tmp_path / "text")
    critic = CriticSection(path=str(tmp_path / "text"))
    section = ModelSection(path=path, dtype="float32", device="cpu")
    with pytest.raises(ConfigError, match=r"critic\.path .*'llama', which reads no images"):
        load_critic(critic, section, images=reader_for("qwen2_vl", tmp_path))
