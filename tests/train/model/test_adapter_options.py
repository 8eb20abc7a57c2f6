"""Dropout, rsLoRA and a start from a folder, beside peft itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from agentrl.batch.packing import pack_micro_batch
from agentrl.config.schema import ModelSection, TrainSection
from agentrl.config.training import LoraSection
from agentrl.errors import ConfigError
from agentrl.train.backends.torch_backend import TorchBackend
from agentrl.train.model.adapters.dropout import SeededDropout
from agentrl.train.model.adapters.start import start_from
from agentrl.train.model.load import load_trained
from agentrl.train.model.lora import add_adapters, merged_weights
from agentrl.train.model.proof import _row
from agentrl.train.saving.held_policy import save_policy
from agentrl.train.trainer import Trainer
from tests.train.model.test_lora import NoTokenizer, adapted
from tests.train.tiny_llama import (
    algorithm,
    make_groups,
    make_step,
    tiny_model,
    with_model_log_probs,
)

IDS = torch.tensor([5, 9, 13, 4, 22, 8, 31])
TARGETS = ("q_proj", "v_proj", "down_proj")


def section(**changes: Any) -> LoraSection:
    return LoraSection(**{"rank": 4, "alpha": 6.0, "targets": TARGETS, **changes})


def of_peft(model: Any, lora: LoraSection) -> Any:
    """A `PeftModel` of its own making, with the same A and B."""
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(lora.targets),
        use_rslora=lora.rslora,
        lora_dropout=lora.dropout,
        task_type="CAUSAL_LM",
    )
    other = peft.get_peft_model(tiny_model(), settings)
    theirs = dict(other.named_parameters())
    with torch.no_grad():
        for name, param in model.named_parameters():
            theirs[f"base_model.model.{name}"].copy_(param)
    return other


def backend_of(model: Any, lora: LoraSection, **settings: Any) -> TorchBackend:
    train = TrainSection(learning_rate=1e-2, lora=lora)
    made = {"gradient_checkpointing": False, "lanes": 1, **settings}
    return TorchBackend(model, train=train, **made)


def own_gradient(backend: TorchBackend) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probabilities of a row, and the gradient of the weighted sum of them."""
    backend.clear_gradients()
    with backend.running():
        batch = backend.to_tensors(pack_micro_batch([_row(IDS.numpy())]))
        found = backend.log_probs(batch).log_probs_R
        backend.backward((found * torch.arange(1, len(IDS))).sum())
    return found.detach(), {name: grad.clone() for name, grad in backend.gradients()}


def peft_numbers(other: Any) -> Tensor:
    logits = other(IDS[None]).logits[0, :-1]
    return torch.log_softmax(logits, -1).gather(1, IDS[1:, None])[:, 0]


@pytest.mark.parametrize("rslora", [False, True])
def test_the_scale_is_that_of_peft(rslora: bool) -> None:
    """Fails if alpha / rank is taken for alpha / sqrt(rank), in passes or in merged weights."""
    lora = section(rslora=rslora)
    model = adapted(section=lora)
    other = of_peft(model, lora)
    found, _ = own_gradient(backend_of(model, lora))
    assert torch.allclose(found, peft_numbers(other).detach(), atol=1e-12)
    whole = other.merge_and_unload().state_dict()
    merged = dict(merged_weights(model))
    assert all(torch.allclose(whole[name], merged[name], atol=1e-12) for name in merged)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_is_that_of_peft_under_the_same_masks(checkpointing: bool) -> None:
    """Numbers are those of peft's evaluation mode, gradients those of its training mode. Fails if a
    recomputed layer draws other masks, or if the ones that are left are not scaled."""
    lora = section(dropout=0.4)
    model = adapted(section=lora)
    other = of_peft(model, lora)
    found, gradient = own_gradient(backend_of(model, lora, gradient_checkpointing=checkpointing))
    assert torch.allclose(found, peft_numbers(other.eval()).detach(), atol=1e-12)

    ours = [module for module in model.modules() if isinstance(module, SeededDropout)]
    theirs = [module for module in other.modules() if isinstance(module, torch.nn.Dropout)]
    assert len(ours) == len(theirs) == 6
    for own, module in zip(ours, theirs, strict=True):
        seed = (own.seed + own.index) % 2**63
        module.register_forward_pre_hook(lambda _, x, seed=seed: torch.manual_seed(seed) and None)
        module.train()
    masked = peft_numbers(other)
    assert not torch.allclose(masked, found, atol=1e-3)
    (masked * torch.arange(1, len(IDS))).sum().backward()
    wanted = {name: p.grad for name, p in other.named_parameters() if p.grad is not None}
    assert len(wanted) == len(gradient) == 12
    for name, grad in gradient.items():
        assert torch.allclose(grad, wanted[f"base_model.model.{name}"], atol=1e-12), name


def test_formed_gradients_are_those_of_kept_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the head forms gradients at once it asks the loss at the numbers without masks."""
    lora = section(dropout=0.4)
    states = []
    for size in (1 << 26, 0):
        monkeypatch.setattr("agentrl.train.model.head_logprobs.FORMED_BYTES", size)
        model = adapted(section=lora)
        train = TrainSection(learning_rate=1e-2, lora=lora)
        trainer = Trainer(model, train=train, algorithm=algorithm())
        groups = with_model_log_probs(tiny_model(), make_groups())  # ratios far from 1
        trainer.step(make_step(groups))
        states.append(trainer.backend.state_dict()["masters"])
    pairs = [(states[0][name], states[1][name]) for name in states[0]]
    assert all(torch.allclose(one, other, atol=1e-9) for one, other in pairs)


def test_the_ratio_of_the_first_update_is_one() -> None:
    """Old log-probabilities are those without masks. Fails if a mask is in the ratio."""
    lora = section(dropout=0.5)
    model = adapted(section=lora)
    train = TrainSection(learning_rate=1e-2, lora=lora)
    backend = backend_of(model, lora)
    groups = with_model_log_probs(merged(model), make_groups())
    trainer = Trainer(model, train=train, algorithm=algorithm(), backend=backend)
    metrics = trainer.step(make_step(groups)).result()
    assert metrics["sampling/sampling_logp_difference/max"] < 1e-9
    ratios = {name: value for name, value in metrics.items() if "ratio" in name and "/m" in name}
    assert ratios, sorted(metrics)
    assert all(abs(value - 1) < 1e-9 for value in ratios.values()), ratios


def merged(model: Any) -> Any:
    plain = tiny_model(seed=7)
    plain.load_state_dict(dict(merged_weights(model)), strict=False)
    return plain


def test_masks_follow_from_tokens_and_adapters() -> None:
    """The same again for the same, in lanes too; another after an update."""
    lora = section(dropout=0.5)
    backend = backend_of(adapted(section=lora), lora)
    _, first = own_gradient(backend)
    torch.manual_seed(77)
    _, again = own_gradient(backend)
    assert all(torch.equal(first[name], again[name]) for name in first)
    seeds = [m.seed for m in backend._model.modules() if isinstance(m, SeededDropout)]
    backend.step(learning_rate=1e-3, grad_norm=backend.grad_norm())
    own_gradient(backend)
    after = [m.seed for m in backend._model.modules() if isinstance(m, SeededDropout)]
    assert seeds != after

    states = []
    for _ in range(2):
        model = adapted(section=lora)
        train = TrainSection(learning_rate=1e-2, lora=lora)
        trainer = Trainer(
            model,
            train=train,
            algorithm=algorithm(),
            backend=backend_of(model, lora, lanes=2),
        )
        trainer.step(make_step(make_groups(), micro_batch_tokens=32))
        states.append(trainer.backend.state_dict()["masters"])
    assert all(torch.equal(states[0][n], states[1][n]) for n in states[0])


def test_dropout_is_refused_where_a_pass_has_one_forward() -> None:
    with pytest.raises(ValueError, match=r"lora\.dropout is 0\.1, which backend fsdp2 does not"):
        TrainSection(lora=section(dropout=0.1), backend="fsdp2")


def saved(folder: Path, lora: LoraSection) -> Any:
    model = adapted(torch.float32, section=lora)
    save_policy(model, NoTokenizer(), folder)
    return model


def test_a_run_begins_with_the_adapters_of_a_folder(tmp_path: Path) -> None:
    """Those of peft itself. Fails if A and B are those that were drawn."""
    lora = section(rslora=True)
    model = adapted(section=lora)
    of_peft(model, lora).save_pretrained(tmp_path)
    begun = tiny_model()
    add_adapters(begun, lora, base="b")
    start_from(begun, lora, str(tmp_path))
    pairs = zip(model.parameters(), begun.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def change(folder: Path, **settings: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 8}, r"has rank 4, alpha 6\.0 and rslora false; train\.lora has rank 8, alpha 6 "),
        ({"alpha": 9.0}, r"alpha 6\.0 and rslora false; train\.lora has rank 4, alpha 9 "),
        ({"rslora": True}, r"rslora false; train\.lora has .* rslora true"),
        (
            {"targets": ("q_proj", "k_proj")},
            r"lacks 4 tensors .*k_proj.* and has over 8 .* beside the 8 of train\.lora\.targets; "
            r"its own targets are \[down_proj, q_proj, v_proj\]",
        ),
    ],
)
def test_a_start_that_does_not_fit_is_refused_with_numbers(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    saved(tmp_path, section())
    lora = section(**changes)
    model = tiny_model(torch.float32)
    add_adapters(model, lora, base="b")
    with pytest.raises(ConfigError, match=message):
        start_from(model, lora, str(tmp_path / "adapter"))


def test_folders_that_are_no_start_are_refused(tmp_path: Path) -> None:
    lora = section()
    saved(tmp_path, lora)
    folder = tmp_path / "adapter"
    model = tiny_model(torch.float32)
    add_adapters(model, lora, base="b")
    whole = (folder / "adapter_config.json").read_text()
    for settings, message in (
        ({"use_dora": True}, "holds DoRA, which train.lora does not have"),
        ({"rank_pattern": {"q_proj": 2}}, "other ranks in some layers"),
        ({"peft_type": "IA3"}, "holds 'IA3' of peft; only LORA"),
        ({"r": None}, "has rank None"),
    ):
        change(folder, **settings)
        with pytest.raises(ConfigError, match=message):
            start_from(model, lora, str(folder))
        (folder / "adapter_config.json").write_text(whole)
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    name = min(tensors)
    for broken, message in (
        ({**tensors, name: tensors[name].mul(float("nan"))}, "nan|NaN|finite"),
        ({**tensors, name: tensors[name][:, :-1].contiguous()}, r"is \[4, \d+\], expected \[4, "),
    ):
        save_file(broken, path)
        with pytest.raises(ConfigError, match=message):
            start_from(model, lora, str(folder))
    path.write_bytes(b"garbage")
    with pytest.raises(ConfigError, match=r"is no folder with adapter_config\.json and"):
        start_from(model, lora, str(folder))
    with pytest.raises(ConfigError, match="is no folder with"):
        start_from(model, lora, str(tmp_path / "nowhere"))


def test_a_resumed_run_needs_its_start_no_more(tmp_path: Path) -> None:
    from tests.runtime.tiny_project import write_project

    write_project(tmp_path)
    model = ModelSection(path=str(tmp_path / "model"), device="cpu", dtype="float32")
    gone = TrainSection(lora=section(start=str(tmp_path / "gone")))
    with pytest.raises(ConfigError, match="is no folder with"):
        load_trained(model, gone, checkpoint=None)
    load_trained(model, gone, checkpoint=str(tmp_path))


class Made(TorchDispatchMode):
    """Sizes of the memory that operations ask for, each once."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.held: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.data_ptr() not in self.sizes:
            self.sizes[out.data_ptr()] = out.untyped_storage().nbytes()
            self.held.append(out)  # or the next one may lie at the same place
        return out


@pytest.mark.parametrize("hooked", [False, True])
def test_an_adapter_makes_no_tensor_but_its_output(hooked: bool) -> None:
    """peft makes three; what it frees of them leaves holes in a heap. A layer with a hook, as those
    of ZeRO-3, may have handed its output on, so it is not written over."""
    lora = section(targets=("up_proj",))
    model = adapted(torch.float32, section=lora)
    layer = model.model.layers[0].mlp.up_proj
    kept: list[Tensor] = []
    if hooked:
        layer.base_layer.register_forward_hook(lambda module, args, out: kept.append(out))
    x = torch.randn(50, layer.base_layer.in_features, requires_grad=True)
    with Made() as made:
        out = layer(x)
    width = 4 * out.numel()
    assert list(made.sizes.values()).count(width) == 1 + hooked
    name = "default"
    up, down = layer.lora_B[name].weight, layer.lora_A[name].weight
    plain = x @ layer.base_layer.weight.T
    assert torch.allclose(out, plain + layer.scaling[name] * (x @ down.T @ up.T), atol=1e-6)
    for before in kept:
        assert torch.allclose(before, plain, atol=1e-6)
    out.sum().backward()
    assert x.grad is not None
