"""Low-rank adapters (LoRA, https://arxiv.org/abs/2106.09685) inside the model, by peft.

    y = W x + s B A x        W [out, in] frozen, A [rank, in], B [out, rank] trained
    s = alpha / rank         or alpha / sqrt(rank), rsLoRA (https://arxiv.org/abs/2312.03732)

Adapters are put into the `transformers` model in place: its class, config and attention stay what
they are, so the trainer, the embedded engine and packed rows see them without knowing of them. Only
A and B ask for gradients, so only they have masters, moments and gradient sums. B begins at zero:
the policy of step 0 is the model itself.

The weights of a model without adapters are the merged ones, W + s B A,
added in float32 and rounded once. Where a sampler runs on merged weights (vLLM), that rounding is
one more difference between sampler and trainer, and shows in `sampling_logp_difference`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.config.training import AdapterSection
from agentrl.errors import ConfigError
from agentrl.models.parts import standing_in
from agentrl.models.recipes import Promised, StoredTensor
from agentrl.models.vision.embed import language_model
from agentrl.models.vision.reader import reader_of
from agentrl.plugins.distribution import install_command
from agentrl.train.model.adapters.added import add_in_one_product
from agentrl.train.model.adapters.dropout import put_dropout

ADAPTER_FOLDER = "adapter"
"""Folder in a checkpoint that holds the adapters alone, in peft's format."""

_LATENT = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", *_LATENT)
_NAME = "default"
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAdapter:
    """The adapter of one layer."""

    name: str
    """Name of the layer; its weight is NAME.weight in the model without adapters."""
    down: Tensor = field(repr=False)
    """A, [rank, in]; the parameter itself."""
    up: Tensor = field(repr=False)
    """B, [out, rank]; the parameter itself."""
    scale: float
    """alpha / rank, or alpha / sqrt(rank)."""
    transposed: bool
    """Whether the layer keeps its weight as [in, out], as GPT-2 does."""
    dequantize: Callable[[Tensor], Tensor] | None = field(default=None, repr=False)
    """From the stored weight to the one that it computes with, where the two are not the same."""

    def whole(self, weight: Tensor) -> Tensor:
        """The weight that the layer computes with, from the one that it stores."""
        return weight if self.dequantize is None else self.dequantize(weight)


def add_adapters(
    model: Any, section: AdapterSection, *, base: str, key: str = "train.lora"
) -> None:
    """Freeze the model and put fresh adapters into it, in its dtype, the same ones on every rank.

    Args:
        model: a `transformers` language model without adapters, with its head or without.
        section: with a rank of at least 1.
        base: folder or hub name of `model`; written into what `save_adapters` saves.
        key: of `section`, for messages.

    Raises:
        ConfigError: peft is not installed, or a target names nothing that can have an adapter.
    """
    peft = load_peft(key)
    targets = list(section.targets)
    try:
        settings = peft.LoraConfig(
            r=section.rank,
            lora_alpha=section.alpha,
            target_modules="all-linear" if targets == ["all-linear"] else targets,
            use_rslora=section.rslora,
            lora_dropout=section.dropout,
            bias="none",
            exclude_modules=_outside_language(model),
            base_model_name_or_path=base,
            task_type="CAUSAL_LM",
        )
        # The same draw on every rank and on every resume, without touching the caller's generator.
        with torch.random.fork_rng(devices=[]), standing_in(model):
            torch.manual_seed(_SEED)
            peft.inject_adapter_in_model(settings, model, _NAME)
    except ValueError as error:
        if "fused into" in str(error):  # half of what experts keep as one parameter
            raise _names_experts(model, targets, key) from error
        raise ConfigError(
            # What peft says may hold a module, layer by layer.
            f"{key}.targets {targets} do not fit {type(model).__name__}: they must name "
            f"linear layers, which are called {', '.join(_linear_names(model))}"
        ) from error
    _check_targets(model, targets, key)
    layers = [layer for _, layer in adapted_layers(model)]
    add_in_one_product(layers, _NAME)
    if section.dropout:
        put_dropout(layers, _NAME, section.dropout)


def _outside_language(model: Any) -> str | None:
    """Pattern of the modules of a vision-language model that get no adapter: its vision tower."""
    if reader_of(model) is None:
        return None
    part = language_model(model)
    name = next(name for name, module in model.named_modules() if module is part)
    return rf"(?!{re.escape(name)}\.).*"


def has_adapters(model: Any) -> bool:
    """Return true if `add_adapters` changed this model."""
    return any(True for _ in adapted_layers(model))


def merged_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Every weight under its name in the model without adapters, adapters merged.

    The order is that of `named_parameters`, a tied head comes once, and the tensors are detached.
    What has no adapter is the parameter itself, not a copy. Persistent buffers come last.
    """
    yield from merged_parameters(model, model.named_parameters())
    yield from persistent_buffers(model)


def promised_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """As `merged_weights` at this moment, but that a weight is merged when its recipe is read.

    A and B are copied; everything else is frozen, and comes as the parameter itself.
    """
    known = {f"{one.name}.base_layer.weight": one for one in adapters(model)}
    for name, param in model.named_parameters():
        if _of_an_adapter(name):
            continue
        plain = name.replace(".base_layer.", ".")
        if name not in known:
            yield plain, param
            continue
        adapter = known[name]
        copied = replace(
            adapter, down=adapter.down.detach().clone(), up=adapter.up.detach().clone()
        )
        yield plain, Promised(StoredTensor(plain, _Unmerged(copied, param)))
    yield from persistent_buffers(model)


class _Unmerged:
    """W + s B A, formed whenever it is looked at, as `StoredTensor` reads it."""

    def __init__(self, adapter: LayerAdapter, weight: Tensor) -> None:
        self._adapter, self._weight = adapter, weight
        dequantized = adapter.dequantize is not None
        self._dtype = adapter.up.dtype if dequantized else weight.dtype

    def get_shape(self) -> tuple[int, ...]:
        shape = (self._adapter.up.shape[0], self._adapter.down.shape[1])
        return shape[::-1] if self._adapter.transposed else shape

    def __getitem__(self, where: Any) -> Tensor:
        if where == slice(0):  # asked for the dtype
            return torch.empty((0, self.get_shape()[1]), dtype=self._dtype)
        weight, one = self._weight.detach(), self._adapter
        # In main memory while the state of the trainer is there.
        near = replace(one, down=one.down.to(weight.device), up=one.up.to(weight.device))
        return _with_delta(near, one.whole(weight))[where]


def persistent_buffers(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Tensors that a checkpoint holds beside the parameters, as the bias of some routers.

    Nothing trains them, and no backend divides them.
    """
    for path, module in model.named_modules():
        for leaf, buffer in module.named_buffers(prefix=path, recurse=False):
            if leaf.rpartition(".")[2] not in module._non_persistent_buffers_set:
                yield leaf.replace(".base_layer.", "."), buffer.detach()


def merged_parameters(
    model: Any, whole: Iterable[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    """The parameters among `merged_weights`, gathered one by one.

    Args:
        model: says which layers have an adapter; its own tensors are not read.
        whole: every parameter in the order of `named_parameters`, in which A and B follow the layer
            that they belong to. Those of a layer are kept until its B has come.
    """
    known = {adapter.name: adapter for adapter in adapters(model)}
    layer: dict[str, Tensor] = {}
    for name, value in whole:
        path, inner, leaf = name.rpartition(".base_layer.")
        if inner:
            layer[leaf] = value.detach()
        elif ".lora_A." in name:
            layer["A"] = value
        elif ".lora_B." in name:
            path = name.partition(".lora_B.")[0]
            adapter = replace(known[path], down=layer.pop("A"), up=value)
            for leaf, kept in layer.items():
                if leaf == "weight":
                    kept = _with_delta(adapter, adapter.whole(kept))
                yield f"{path}.{leaf}", kept
            layer.clear()
        else:
            yield name, value.detach()
    assert not layer, layer.keys()


def base_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """As `merged_weights`, without what the adapters add: the model that the run began with."""
    yield from base_parameters(model, model.named_parameters())
    yield from persistent_buffers(model)


def base_parameters(
    model: Any, whole: Iterable[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    """The parameters among `base_weights`, gathered one by one.

    Args:
        model: says how a layer stores its weight; its own tensors are not read.
        whole: every parameter.
    """
    known = {f"{one.name}.base_layer.weight": one for one in adapters(model)}
    for name, param in whole:
        if name in known:
            param = known[name].whole(param)
        if not _of_an_adapter(name):
            yield name.replace(".base_layer.", "."), param.detach()


def gathered_adapters(model: Any, whole: Iterable[tuple[str, Tensor]]) -> Iterator[LayerAdapter]:
    """As `adapters`, of parameters that are gathered one by one.

    Args:
        model: says which layers have an adapter; its own tensors are not read.
        whole: A and B of every layer, in the order of `named_parameters`.
    """
    known, named = {adapter.name: adapter for adapter in adapters(model)}, iter(whole)
    for (name, down), (_, up) in zip(named, named, strict=True):
        yield replace(known[name.partition(".lora_A.")[0]], down=down, up=up)


def adapters(model: Any) -> Iterator[LayerAdapter]:
    """All adapters, in the order of the model."""
    for name, layer in adapted_layers(model):
        yield LayerAdapter(
            name=name,
            down=layer.lora_A[_NAME].weight,
            up=layer.lora_B[_NAME].weight,
            scale=layer.scaling[_NAME],
            transposed=layer.fan_in_fan_out,
            dequantize=getattr(layer.base_layer, "whole", None),
        )


def save_adapters(model: Any, folder: Path, trained: Mapping[str, Tensor]) -> None:
    """Write the adapters alone, in peft's format.

    Args:
        model: says which layers have one.
        folder: is made.
        trained: A and B by their names in `model`.
    """
    from safetensors.torch import save_file

    peft = load_peft()
    folder.mkdir()
    # Embeddings are never trained here; asked to find that out itself, peft would call the hub.
    state = peft.get_peft_model_state_dict(
        model, state_dict=trained, adapter_name=_NAME, save_embedding_layers=False
    )
    # The wrapper that peft itself puts around a model gives all names this beginning.
    named = {f"base_model.model.{name}": value.contiguous() for name, value in state.items()}
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = model.peft_config[_NAME]
    settings.inference_mode = True
    settings.save_pretrained(str(folder))


@torch.no_grad()
def _with_delta(adapter: LayerAdapter, weight: Tensor) -> Tensor:
    """W + scale B A in float32 at least, rounded once to the dtype of W."""
    kind = torch.promote_types(weight.dtype, torch.float32)
    delta = adapter.up.to(kind) @ adapter.down.to(kind) * adapter.scale
    return (weight.to(kind) + (delta.T if adapter.transposed else delta)).to(weight.dtype)


def _of_an_adapter(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


def adapted_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Name and module of every layer with an adapter, in the order of the model."""
    for name, module in model.named_modules():
        if hasattr(module, "base_layer") and _NAME in getattr(module, "lora_A", {}):
            yield name, module


def _check_targets(model: Any, targets: list[str], key: str) -> None:
    """Peft is content if one of several targets is there, and takes more than matrices."""
    # peft adapts the parameters of experts in place of their layers, which nothing here merges.
    if any(
        getattr(layer, "parameter_name", "weight") != "weight" for _, layer in adapted_layers(model)
    ):
        raise _names_experts(model, targets, key)
    names = [name for name, _ in adapted_layers(model)]
    for target in targets:
        found = any(name == target or name.endswith(f".{target}") for name in names)
        if target != "all-linear" and not found:
            raise ConfigError(
                f"{key}.targets: {target!r} is no linear layer of {type(model).__name__}; its "
                f"linear layers are called {', '.join(_linear_names(model))}"
            )
    head = model.get_output_embeddings()
    if any(module is head for _, module in adapted_layers(model)):
        raise ConfigError(
            f"{key}.targets names the head, which is computed in chunks without adapters; leave it "
            "out"
        )


def _names_experts(model: Any, targets: list[str], key: str) -> ConfigError:
    return ConfigError(
        f"{key}.targets {targets} put adapters on the experts of {type(model).__name__}, which "
        f"agentrl cannot merge into its weights; name linear layers of attention alone, as in "
        f"{key}.targets: [{_attention(model)}]"
    )


def _attention(model: Any) -> str:
    """Linear layers of attention, for a message."""
    return ", ".join(name for name in _linear_names(model) if name in _ATTENTION)


def _linear_names(model: Any) -> list[str]:
    """The last parts of the names of all linear layers but the head."""
    head = model.get_output_embeddings()
    return sorted(
        {
            name.removesuffix(".base_layer").rpartition(".")[2]
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and module is not head and ".lora_" not in name
        }
    )


def load_peft(key: str = "train.lora") -> Any:
    """Import and return the peft package.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import peft
    except ImportError:
        raise ConfigError(
            f"{key} needs the package peft, which is not installed; run "
            f"{install_command('lora')}, or leave {key} out"
        ) from None
    return peft
