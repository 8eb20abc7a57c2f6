"""Saving a model imports nothing that the model does not use."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentrl.models.hub_format import save_pretrained
from tests.train.tiny_llama import tiny_model


class _Forbid:
    """Finder of modules for which DeepSpeed is installed and must not be imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        assert name.split(".")[0] != "deepspeed", "DeepSpeed is looked for"


def test_a_model_is_saved_without_importing_deepspeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "deepspeed"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Forbid(), *sys.meta_path])
    model = tiny_model(torch.float32)
    save_pretrained(model, tmp_path / "own")
    others = {name: tensor + 1 for name, tensor in model.named_parameters()}
    save_pretrained(model, tmp_path / "others", weights=others)
    own = load_file(tmp_path / "own" / "model.safetensors")
    found = load_file(tmp_path / "others" / "model.safetensors")
    assert own.keys() == found.keys()
    assert all(torch.equal(found[name], own[name] + 1) for name in own)
    with pytest.raises(AssertionError, match="is looked for"):
        model.save_pretrained(tmp_path / "plain")
