"""Adapters: the same trainer, the same sampler, and merged weights for everybody else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.config.fleet import EmbeddedServing
from agentrl.config.schema import TrainSection
from agentrl.config.training import LoraSection
from agentrl.errors import ConfigError
from agentrl.train.backends.choose import make_backend
from agentrl.train.model.lora import add_adapters, has_adapters, merged_weights
from agentrl.train.saving.held_policy import hold_policy, save_policy
from agentrl.train.saving.snapshot import StateSnapshot
from agentrl.train.trainer import Trainer
from agentrl.types import SamplingParams
from tests.models.test_whole import FAMILIES, SMALL
from tests.train.tiny_llama import (
    KeepGradient,
    algorithm,
    make_groups,
    make_step,
    relative_error,
    tiny_model,
    with_model_log_probs,
)

LORA = LoraSection(rank=3, alpha=6.0)
TRAIN = TrainSection(learning_rate=1e-2, lora=LORA)


def adapted(
    dtype: torch.dtype = torch.float64,
    *,
    fresh: bool = False,
    section: LoraSection = LORA,
    **kinds: Any,
) -> Any:
    """A tiny model with adapters; unless they are to be fresh, B is drawn too."""
    model = tiny_model(dtype, **kinds)
    add_adapters(model, section, base="org/base")
    if not fresh:
        torch.manual_seed(9)
        with torch.no_grad():
            for name, param in model.named_parameters():
                if "lora_B" in name:
                    param.normal_(std=0.1)
    return model


def merged_model(model: Any, **kinds: Any) -> Any:
    """Another model, without adapters, that holds the merged weights."""
    plain = tiny_model(model.dtype, seed=7, **kinds)
    missing, extra = plain.load_state_dict(dict(merged_weights(model)), strict=False)
    assert not extra
    assert missing in ([], ["lm_head.weight"])
    return plain


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(torch.tensor([[5, 9, 13, 4]])).logits


def gradients(model: Any) -> dict[str, Tensor]:
    backend = KeepGradient(model)
    Trainer(model, train=TRAIN, algorithm=algorithm(), backend=backend).step(
        make_step(make_groups(), algorithm=algorithm())
    )
    (kept,) = backend.kept
    return kept


@pytest.mark.parametrize("tied", [True, False])
def test_fresh_adapters_change_nothing_and_merged_weights_change_nothing(tied: bool) -> None:
    assert torch.equal(logits(adapted(fresh=True, tied=tied)), logits(tiny_model(tied=tied)))
    model = adapted(tied=tied)
    assert not torch.allclose(logits(model), logits(tiny_model(tied=tied)), atol=1e-3)
    # Fails if the scale alpha / rank is left out, or A and B are taken the wrong way round.
    assert torch.allclose(logits(model), logits(merged_model(model, tied=tied)), atol=1e-12)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_have_the_names_and_order_of_the_model_without_adapters(tied: bool) -> None:
    wanted = [(name, param.shape) for name, param in tiny_model(tied=tied).named_parameters()]
    found = [(name, value.shape) for name, value in merged_weights(adapted(tied=tied))]
    assert found == wanted


def test_a_model_without_adapters_gives_its_own_parameters() -> None:
    model = tiny_model()
    pairs = zip(merged_weights(model), model.named_parameters(), strict=True)
    assert all(a == b and x.data_ptr() == y.data_ptr() for (a, x), (b, y) in pairs)
    assert not has_adapters(model)


def test_the_gradient_is_that_of_the_merged_model_by_the_chain_rule() -> None:
    """dA = s B' dW and dB = s dW A' with dW of the merged model. Fails if rows, head or packed
    attention go around the adapters, or if anything else gets a gradient."""
    model = adapted()
    full = gradients(merged_model(model))
    named, scale = dict(model.named_parameters()), LORA.alpha / LORA.rank
    wanted: dict[str, Tensor] = {}
    for name, param in named.items():
        if ".lora_" not in name:
            continue
        layer = name.split(".lora_")[0]
        a, b = (named[f"{layer}.lora_{x}.default.weight"].detach() for x in "AB")
        whole = full[f"{layer}.weight"]
        wanted[name] = scale * (b.T @ whole if ".lora_A." in name else whole @ a.T)
        assert wanted[name].shape == param.shape
    assert relative_error(gradients(model), wanted) < 1e-12


def test_only_adapters_move_on_float32_masters() -> None:
    model = adapted(torch.bfloat16, fresh=True)
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    trainer = Trainer(model, train=TRAIN, algorithm=algorithm())
    for seed in range(2):
        trainer.step(make_step(make_groups(seed)))
    for name, param in model.named_parameters():
        assert torch.equal(param, before[name]) == (".lora_" not in name), name
    masters = trainer.backend.state_dict()["masters"]
    assert masters.keys() == {name for name in before if ".lora_" in name}
    assert {value.dtype for value in masters.values()} == {torch.float32}


def test_every_rank_draws_the_same_adapters_and_leaves_the_generator_alone() -> None:
    # Ranks that begin apart are refused; a run that is seeded must not see that adapters were made.
    torch.manual_seed(1)
    wanted = torch.rand(1)
    first, second = tiny_model(), tiny_model()
    torch.manual_seed(1)
    add_adapters(first, LORA, base="b")
    assert torch.equal(torch.rand(1), wanted)
    add_adapters(second, LORA, base="b")
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(mine, other) for mine, other in pairs)


def test_checkpointing_gives_the_same_gradient() -> None:
    """Everything below the adapters is frozen. Fails with reentrant checkpointing where the inputs
    of the first layer ask for no gradient: adapters of the layers then get none."""
    plain, checkpointed = adapted(torch.float32), adapted(torch.float32)
    batch = make_step(make_groups())
    states = []
    for model, on in ((plain, False), (checkpointed, True)):
        trainer = Trainer(model, train=TRAIN, algorithm=algorithm(), gradient_checkpointing=on)
        trainer.step(batch)
        states.append(trainer.backend.state_dict()["masters"])
    assert relative_error(states[1], states[0]) < 1e-6


async def test_the_embedded_engine_samples_with_the_adapters() -> None:
    """Its log-probabilities are those of the merged model. Fails if it runs the base weights."""
    from agentrl.serving.embedded import EmbeddedEngine

    model = adapted(torch.float32)
    engine = EmbeddedEngine(
        model, section=EmbeddedServing(max_batch_size=2, kv_cache_gb=0.01), max_context_tokens=32
    )
    try:
        sampling = SamplingParams(max_tokens=6, seed=1)
        turn = await engine.generate((5, 9, 13), sampling, "one")
    finally:
        await engine.close()
    ids = torch.tensor([[5, 9, 13, *turn.ids]])
    with torch.no_grad():
        rows = torch.log_softmax(merged_model(model)(ids).logits[0, 2:-1].double(), -1)
        base = torch.log_softmax(tiny_model(torch.float32)(ids).logits[0, 2:-1].double(), -1)
    chosen = torch.tensor(turn.ids)[:, None]
    ours = torch.tensor(turn.log_probs, dtype=torch.float64)
    assert torch.allclose(rows.gather(1, chosen)[:, 0], ours, atol=1e-5)
    assert not torch.allclose(base.gather(1, chosen)[:, 0], ours, atol=1e-2)


def test_trainer_and_sampler_agree_on_policy() -> None:
    model = adapted(torch.float32)
    groups = with_model_log_probs(merged_model(model), make_groups())
    metrics = Trainer(model, train=TRAIN, algorithm=algorithm()).step(make_step(groups)).result()
    assert metrics["sampling/sampling_logp_difference/max"] < 1e-5


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    # Bit-equal, from the base model and the trainer's state alone.
    whole = adapted(torch.bfloat16, fresh=True)
    trainer = Trainer(whole, train=TRAIN, algorithm=algorithm())
    for seed in range(2):
        trainer.step(make_step(make_groups(seed)))
    trainer.save(tmp_path)
    resumed = adapted(torch.bfloat16)
    again = Trainer(resumed, train=TRAIN, algorithm=algorithm())
    again.load(tmp_path)
    for one in (trainer, again):
        one.step(make_step(make_groups(2)))
    pairs = zip(whole.parameters(), resumed.parameters(), strict=True)
    assert all(torch.equal(mine, other) for mine, other in pairs)


class NoTokenizer:
    def save_pretrained(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")


def test_a_checkpoint_is_the_merged_model_with_the_adapters_beside_it(tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = adapted(torch.float32)
    save_policy(model, NoTokenizer(), tmp_path)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not has_adapters(whole)
    assert torch.allclose(logits(whole), logits(model), atol=1e-5)
    # What other tools make of the adapters alone; fails if a name, the scale or A and B are off.
    alone = PeftModel.from_pretrained(tiny_model(torch.float32), tmp_path / "adapter")
    assert torch.allclose(logits(alone), logits(model), atol=1e-6)  # peft rounds twice
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (settings["base_model_name_or_path"], settings["r"]) == ("org/base", 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_save_holds_adapters_alone_and_merges_tensor_by_tensor(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    """Fails if all merged weights are in main memory for a save, or if those of a later step get
    into the file."""
    model = adapted(dtype)
    backend = make_backend(model, train=TRAIN, gradient_checkpointing=False, ranks=None)
    wanted = {name: weight.clone() for name, weight in backend.weights()}
    snapshot = StateSnapshot()
    held = hold_policy(model, NoTokenizer(), backend, snapshot)
    snapshot.settle()
    assert not snapshot._own
    with torch.no_grad():
        for param in model.parameters():
            if param.requires_grad:
                param.add_(1.0)
    held.write(tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_merged_weights_are_rounded_once() -> None:
    # In bfloat16, B A and its sum with W would each be rounded. Fails without the float32.
    model = adapted(torch.bfloat16)
    layer = model.model.layers[0].self_attn.q_proj
    a, b = layer.lora_A["default"].weight.double(), layer.lora_B["default"].weight.double()
    exact = layer.base_layer.weight.double() + LORA.alpha / LORA.rank * b @ a
    merged = dict(merged_weights(model))["model.layers.0.self_attn.q_proj.weight"]
    assert torch.equal(merged, exact.to(torch.bfloat16))


def test_named_targets_only() -> None:
    model = adapted(section=LoraSection(rank=2, targets=("q_proj", "v_proj")))
    found = {name.split(".")[4] for name, p in model.named_parameters() if p.requires_grad}
    assert found == {"q_proj", "v_proj"}


def test_all_linear_stands_alone() -> None:
    """Fails (only q_proj has an adapter) if such a list goes to peft."""
    with pytest.raises(ValueError, match=r"\['all-linear', 'q_proj'\], but all-linear stands for"):
        LoraSection(rank=2, targets=("all-linear", "q_proj"))


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern")
@pytest.mark.parametrize(
    ("family", "attention"),
    [
        ("qwen3_moe", "k_proj, o_proj, q_proj, v_proj"),
        ("glm4_moe", "k_proj, o_proj, q_proj, v_proj"),
        ("deepseek_v3", "kv_a_proj_with_mqa, kv_b_proj, o_proj, q_a_proj, q_b_proj"),
    ],
)
def test_experts_are_named_as_such(family: str, attention: str) -> None:
    """Fails if a dense layer of the same name, or none, is offered where experts were meant."""
    config = AutoConfig.for_model(family, **{**SMALL, **FAMILIES[family]})
    for targets in (("o_proj", "gate_proj"), ("down_proj",), ("gate_proj", "up_proj")):
        model = AutoModelForCausalLM.from_config(config)
        with pytest.raises(
            ConfigError, match=rf"on the experts of .*train\.lora\.targets: \[{attention}\]$"
        ):
            add_adapters(model, LoraSection(rank=2, targets=targets), base="x")


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        # Fails (over 1000 letters) if peft's words are repeated: they hold the module itself.
        (("layers",), r"^train.lora.targets \['layers'\] do .{,99}called down_proj, gate.{,99}$"),
        (("query",), r"targets \['query'\] do not fit LlamaForCausalLM: .*called down_proj, gate"),
        (("q_proj", "qproj"), r"'qproj' is no linear layer of LlamaForCausalLM; .* q_proj"),
        (("q_proj", "lm_head"), "names the head"),
        (("q_proj", "embed_tokens"), "'embed_tokens' is no linear layer"),
    ],
)
def test_targets_that_do_not_fit_are_refused(targets: tuple[str, ...], message: str) -> None:
    # Peft itself is content with one of two names, and adapts a head or embeddings.
    with pytest.raises(ConfigError, match=message):
        adapted(section=LoraSection(rank=2, targets=targets), tied=False)
