"""Layers that recompute their activations: which ones do, and that nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agentrl.config import parse_config
from agentrl.config.training import LoraSection, TrainSection
from agentrl.errors import ConfigError
from agentrl.train.backends.torch_backend import TorchBackend
from agentrl.train.model.lora import add_adapters
from agentrl.train.model.recompute import recompute_layers
from agentrl.train.model.value_head import ValueModel
from tests.train.tiny_llama import VOCABULARY, make_groups, make_step

LORA = LoraSection(rank=3, dropout=0.25)


def deep_model(lora: LoraSection | None = None) -> Any:
    """Four layers, float64, on random adapters where there are any."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=4,
        num_attention_heads=2, num_key_value_heads=1, pad_token_id=0, initializer_range=0.1,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config).double().eval()
    if lora is not None:
        add_adapters(model, lora, base="tiny")
        for name, param in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(param, std=0.1)
    return model


def passes(which: bool | int, lora: LoraSection | None, lanes: int = 1) -> tuple[Any, list[int]]:
    """Gradients of all micro-batches of a step, and how often each layer has run for one."""
    model, runs = deep_model(lora), [0] * 4
    train = TrainSection(lora=lora)
    backend = TorchBackend(model, train=train, gradient_checkpointing=which, lanes=lanes)
    for held in (backend._model, *(copied.model for copied in backend._copies)):
        for at, layer in enumerate(held.model.layers):

            def count(*_: Any, at: int = at) -> None:
                runs[at] += 1

            layer.input_layernorm.register_forward_hook(count)
    (update,) = make_step(make_groups(), micro_batch_tokens=64).updates

    def work(lane: Any, micro: Any) -> None:
        lane.backward(lane.log_probs(lane.to_tensors(micro)).log_probs_R.sum())

    with backend.running():  # and its reading of rows is found, in passes that do not count
        runs[:] = [0] * 4
        backend.run_each(backend.share(update).micro_batches, work)
    assert len(update.micro_batches) > 1
    return dict(backend.gradients()), [n // len(update.micro_batches) for n in runs]


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "adapters"])
def test_gradients_are_the_same_bits_whatever_recomputes(lora: LoraSection | None) -> None:
    """Fails if a recomputed layer drops other numbers, or if other layers run twice."""
    plain, once = passes(False, lora)
    # What is dropped out takes a second pass, without it, for the numbers that are reported.
    assert once == [1 if lora is None else 2] * 4
    for which, more in ((True, [1, 1, 1, 1]), (3, [1, 1, 1, 0]), (4, [1, 1, 1, 1])):
        found, counted = passes(which, lora)
        assert counted == [n + again for n, again in zip(once, more, strict=True)], which
        assert found.keys() == plain.keys()
        assert all(torch.equal(found[name], plain[name]) for name in plain), which
    assert any(value.abs().max() > 0 for value in plain.values())


def test_lanes_recompute_the_same_layers() -> None:
    one, _ = passes(False, None)
    two, runs = passes(3, None, lanes=2)
    assert runs == [2, 2, 2, 1]
    assert all(torch.allclose(two[name], one[name], rtol=1e-12, atol=1e-14) for name in one)


def test_more_layers_than_there_are_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"is 5, and the model has 4 layers; .* from 2 to 4"):
        recompute_layers(deep_model(), 5)
    critic = ValueModel(deep_model().model)  # may be of another size than the policy
    recompute_layers(critic, 5)
    assert all(layer.gradient_checkpointing for layer in critic.body.layers)


def test_a_model_that_recomputes_all_or_nothing_says_so() -> None:
    class Old:
        def gradient_checkpointing_enable(self, options: Any) -> None:
            assert options == {"use_reentrant": False}

        def modules(self) -> list[Any]:
            return [self]

    recompute_layers(Old(), True)
    with pytest.raises(ConfigError, match="Old recomputes all of its layers or none"):
        recompute_layers(Old(), 2)


@pytest.mark.parametrize("wrong", [-3, 2.5, "some", None, [2]])
def test_what_is_no_number_of_layers_is_explained(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"gradient_checkpointing: got .*, expected true \(all"):
        parse_config({"model": {"gradient_checkpointing": wrong}})
