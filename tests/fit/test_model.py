"""Examples that a model cannot read are refused before it is trained on them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentrl.errors import ConfigError
from agentrl.fit.model import check_rows
from tests.train.tiny_llama import VOCABULARY, tiny_model


def example(*ids: int) -> Any:
    return SimpleNamespace(prompt_ids=(1, 2), answers=(SimpleNamespace(ids=ids),))


def test_examples_with_unknown_tokens_or_too_long_are_refused() -> None:
    model = tiny_model(torch.float32)
    check_rows(model, [example(3, VOCABULARY - 1)], who="x")
    with pytest.raises(ConfigError, match=rf"x has {VOCABULARY} rows .* token id {VOCABULARY}"):
        check_rows(model, [example(3), example(VOCABULARY)], who="x")
    rotary = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    model.config.rope_parameters, model.config.max_position_embeddings = rotary, 4
    check_rows(model, [example(3, 4)], who="x")
    with pytest.raises(ConfigError, match=r"beyond 4 tokens, and a row may have 5 \(the longest"):
        check_rows(model, [example(3), example(3, 4, 5)], who="x")
