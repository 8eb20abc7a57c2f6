"""A model that sees is compared with its own forward pass on a row with an image, too."""

from __future__ import annotations

import pytest
import torch

from agentrl.config.schema import TrainSection
from agentrl.errors import ConfigError
from agentrl.models.vision.embed import language_model
from agentrl.train.backends.choose import make_backend
from agentrl.train.model.value_head import ValueModel
from tests.models.vision.tiny_seeing import FAMILIES, seeing_model


def backend(of):
    return make_backend(of, train=TrainSection(), gradient_checkpointing=False, ranks=None)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_agrees_with_itself(family, tmp_path):
    seeing = seeing_model(family, tmp_path / "images")
    forms = backend(seeing).proof.forms
    assert set(forms) == {"packed", "prefix-shared", "with an image"}
    assert max(forms.values()) < 1e-5
    assert not list(tmp_path.glob("images/*"))  # the image of the proof is none of the run


def flat(made):
    """Positions of an image by token, as those of text, where rows are packed."""
    text = language_model(made)
    whole = text.forward

    def forward(*args, **options):
        if "segments" in options:
            options["position_ids"] = options["position_ids"][:1].expand(3, -1, -1)
        return whole(*args, **options)

    text.forward = forward
    return made


def test_an_image_that_is_read_otherwise_is_noticed(tmp_path):
    """Fails if rows of text alone are compared; these agree."""
    made = flat(seeing_model("qwen2_5_vl", tmp_path / "images"))
    with pytest.raises(ConfigError, match=r"with an image by .*\(packed, prefix-shared agrees\)"):
        backend(made)


def test_a_critic_that_sees_is_compared(tmp_path):
    seeing = seeing_model("qwen2_5_vl", tmp_path / "images").to(torch.float32)
    critic = ValueModel(seeing.base_model)
    critic.body.agentrl_images = seeing.agentrl_images
    assert backend(critic).proof.forms["with an image"] < 1e-5
