"""Adapters that a run goes on with are proven with the model: fresh ones add nothing to it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from agentrl.config.fleet import EmbeddedServing
from agentrl.config.training import TrainSection
from agentrl.errors import ConfigError
from agentrl.models.own_forward import probe_ids
from agentrl.runtime.open_stages import _engine_proof
from agentrl.serving.embedded import EmbeddedEngine
from agentrl.train.backends.choose import make_backend, prove_adapters
from agentrl.train.model.lora import adapters, add_adapters
from tests.train.model.mutants import model

LORA = {"lora": {"rank": 2, "alpha": 8.0}}


def trained(made):
    """The adapters as no fresh ones are."""
    with torch.no_grad():
        for adapter in adapters(made):
            adapter.up.normal_()
    return made


def adapted():
    train = TrainSection.model_validate(LORA)
    made = model("llama")
    add_adapters(made, train.lora, base="tiny")
    return made, train


def only_in_short_rows(made):
    """An adapter that rows side by side, and rows of a cache, do not see."""
    layer = made.model.layers[0].self_attn.q_proj
    whole, length = layer.forward, probe_ids(made).shape[1]

    def forward(x, *args, **options):
        own = x.shape[1] == length
        return whole(x, *args, **options) if own else layer.base_layer(x, *args, **options)

    layer.forward = forward
    return made


def test_adapters_that_were_loaded_are_proven_and_fresh_ones_cannot_be():
    made, train = adapted()
    backend = make_backend(
        only_in_short_rows(made), train=train, gradient_checkpointing=False, ranks=None
    )
    before = backend.proof
    prove_adapters(backend, made)  # B is zero still
    assert backend.proof.forms == before.forms
    trained(made)
    with pytest.raises(ConfigError, match=r"model\.path: .* differ from those of its own forward"):
        prove_adapters(backend, made)


async def test_the_engine_is_proven_with_the_adapters_that_were_loaded():
    """Fails if what is kept of a resumed run is the proof of a model without them."""
    made, _ = adapted()
    section = EmbeddedServing(kv_cache_gb=0.05)
    engine = EmbeddedEngine(made, section=section, max_context_tokens=64)
    try:
        engines = SimpleNamespace(proof=engine.proof, prove_again=engine.prove_again)
        assert _engine_proof(engines, adapters_loaded=False) is engine.proof
        trained(only_in_short_rows(made))
        with pytest.raises(ConfigError, match=r"serving\.engine is embedded: .* differ"):
            _engine_proof(engines, adapters_loaded=True)
    finally:
        await engine.close()
