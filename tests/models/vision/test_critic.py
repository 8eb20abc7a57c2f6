"""A critic that reads the images of the rows that it values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from agentrl.config.schema import CriticSection, ModelSection, TrainSection
from agentrl.errors import ConfigError
from agentrl.models.vision.reader import load_reader
from agentrl.train.backends.torch_backend import TorchBackend
from agentrl.train.model.value_head import ValueModel, load_critic
from agentrl.types import TrajectoryGroup
from tests.chat.chat_models import seeing_tokenizer
from tests.models.vision.seeing_rows import seeing_groups
from tests.models.vision.tiny_seeing import (
    FAMILIES,
    checkpoint,
    config,
    model_of,
    picture,
    processor,
    reader_for,
)
from tests.train.tiny_llama import make_step, tiny_model


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


@pytest.mark.parametrize(
    ("policy", "other", "sizes"),
    [
        ("qwen2_vl", "qwen3_vl", r"patch_size 16, not 14"),
        ("smolvlm", "idefics3", r"image_size 128, not 64, scale_factor 4, not 2"),
    ],
)
def test_a_critic_that_divides_images_otherwise_is_refused_with_both_sizes(
    policy: str, other: str, sizes: str, tmp_path: Path
) -> None:
    """Fails if it is found only when a rank has given the critic pixels, and others wait for it."""
    path = str(checkpoint(policy, tmp_path / "model"))
    theirs = checkpoint(other, tmp_path / "critic")
    if other == "idefics3":
        made = config(other)
        made.vision_config.image_size, made.scale_factor = 128, 4
        type(model_of(other))(made).save_pretrained(theirs)
    critic = CriticSection(path=str(theirs))
    section = ModelSection(path=path, dtype="float32", device="cpu")
    with pytest.raises(
        ConfigError, match=rf"critic\.path .* reads images in {sizes} as the policy"
    ):
        load_critic(critic, section, images=reader_for(policy, tmp_path))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_image_processor_of_another_model_is_refused_when_a_rank_loads_it(
    name: str, tmp_path: Path
) -> None:
    path = checkpoint(name, tmp_path / "model")
    assert load_reader(str(path), seeing_tokenizer(name)) is not None
    other = processor(name)
    if name == "smolvlm":
        other.max_image_size, sizes = {"longest_edge": 32}, "image_size 32, not 64"
    elif hasattr(other, "merge_size"):
        sizes = f"patch_size 28, not {other.patch_size}, spatial_merge_size 4, not 2"
        other.patch_size, other.merge_size = 28, 4
    else:
        sizes = f"image_size 28, not {other.size['height']}"
        other.size = {"height": 28, "width": 28}
    other.save_pretrained(path)
    with pytest.raises(ConfigError, match=rf"makes images of {sizes} as its model reads them"):
        load_reader(str(path), seeing_tokenizer(name))
