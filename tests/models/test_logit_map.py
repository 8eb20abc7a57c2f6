"""Scales and caps of logits are those of the model's own forward, and so are their gradients."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agentrl.models.logit_map import LogitMap, logit_map
from agentrl.train.model import head_logprobs
from agentrl.train.model.head_logprobs import head_numbers

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "families"))
from tiny_models import build

MAPS = {
    "llama": LogitMap(),
    "cohere": LogitMap(scale=0.3),
    "granite": LogitMap(scale=0.4),
    "falcon_h1": LogitMap(scale=0.4),
    "gemma2": LogitMap(cap=1.5),
    "gemma3_text": LogitMap(cap=1.5),
    "minicpm3": LogitMap(before=0.5),
}


@pytest.mark.parametrize("kind", MAPS)
def test_the_map_is_read_from_the_forward_of_the_model(kind: str) -> None:
    """Fails where a family has another name in its config than those that somebody thought of."""
    model = build(kind)
    parts = dict(model.named_modules())
    found, want = logit_map(model), MAPS[kind]
    assert (found.before, found.cap) == (want.before, want.cap)
    assert found.scale == pytest.approx(want.scale, rel=1e-12)
    assert logit_map(model) is found
    # The model itself was never changed.
    assert dict(model.named_modules()) == parts
    assert all("forward" not in part.__dict__ for part in parts.values())


def test_a_forward_that_does_something_else_has_the_map_that_does_nothing() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.lm_head = nn.Linear(4, 4), nn.Linear(4, 7, bias=False)

        def get_output_embeddings(self) -> nn.Module:
            return self.lm_head

        def forward(self, input_ids: Tensor, use_cache: bool) -> Any:
            raise RuntimeError("anything")

    assert logit_map(Odd()) == LogitMap()


TOKENS, VOCABULARY, WIDTH = 23, 37, 8
PATHS: dict[str, dict[str, Any]] = {
    "kept": {},
    "chunks": {"max_kept_bytes": 16 * 5 * VOCABULARY},
    "formed": {"gradient_of": True},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "how", [LogitMap(scale=0.4), LogitMap(cap=2.0, scale=1.5), LogitMap(before=0.5)]
)
def test_gradients_are_those_of_the_dense_formula(
    monkeypatch: pytest.MonkeyPatch, path: str, how: LogitMap
) -> None:
    """Fails without the slope of the map in any of the ways that the head has."""
    monkeypatch.setattr(head_logprobs, "FORMED_BYTES", 16 * 5 * VOCABULARY)
    torch.manual_seed(0)
    shapes = ((TOKENS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    leaves = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    hidden, weight, bias = leaves
    target = torch.randint(0, VOCABULARY, (TOKENS,))
    temperature = torch.rand(TOKENS, dtype=torch.float64) + 0.5
    upstream = torch.randn(2, TOKENS, dtype=torch.float64)
    raw = (how.before * hidden) @ weight.t() + bias
    logits = how.scale * raw
    if how.cap is not None:
        logits = how.cap * torch.tanh(logits / how.cap)
    exact = torch.log_softmax(logits / temperature[:, None], -1)
    numbers = [exact[torch.arange(TOKENS), target], torch.special.entr(exact.exp()).sum(-1)]
    want = torch.autograd.grad(numbers, leaves, list(upstream))

    given = dict(PATHS[path])
    if given.pop("gradient_of", False):
        given["gradient_of"] = lambda part, *_: upstream[:, part]
    found = head_numbers(
        hidden, weight, target, bias_V=bias, temperature_A=temperature, entropy_gradient=True,
        logit_map=how, **given,
    )  # fmt: skip
    got = [found.log_probs_A, found.entropy_A]
    torch.testing.assert_close(got, numbers, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(torch.autograd.grad(got, leaves, list(upstream)), want, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-10 * float(theirs.abs().max())
