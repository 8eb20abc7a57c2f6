"""Bytes that a forward and backward pass takes beside weights and gradients: the trainer's own code
on tensors without memory.

Two models of few layers are run, with the packed attention and the head of the trainer, and the
tensors that live at the same time are counted; a layer more costs the difference of the two. So
every family is counted as it computes, adapters and recomputed layers too. Where the code looks at
numbers, as some routers of experts do, there are none to look at: `measured` is None then, and the
caller takes the formula of `estimate`.
"""

from __future__ import annotations

import copy
import logging
import re
import weakref
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface, AutoModelForCausalLM

from agentrl.batch.tensors import TensorBatch
from agentrl.config.schema import ModelSection
from agentrl.config.training import TrainSection
from agentrl.models.cache_bytes import layer_kinds
from agentrl.models.lm_head import use_float32_head
from agentrl.train.backends.torch_backend import exact_passes
from agentrl.train.model.logprobs import packed_log_probs
from agentrl.train.model.lora import adapted_layers, add_adapters
from agentrl.train.model.recompute import recompute_layers

logger = logging.getLogger(__name__)

_BEGUN = 2
"""Layers from which on each costs as much as the next: with one, the head may take more."""
_KERNEL, _FUSED = "agentrl_counted_kernel", "agentrl_counted_fused_kernel"


def measured(
    config: Any, train: TrainSection, model: ModelSection, *, row: int, response: int, on_gpu: bool
) -> int | None:
    """Most bytes that live at once beside weights and gradients; None where it cannot be run.

    Args:
        config: of `transformers`.
        train: micro-batch and adapters.
        model: arithmetic and checkpointing.
        row: tokens of the longest row.
        response: most tokens of a row that the head reads.
        on_gpu: take the way of a GPU.
    """
    layers = layer_kinds(config.get_text_config())
    if not layers:
        return None
    which = model.gradient_checkpointing
    again = len(layers) * which if isinstance(which, bool) else which
    # By whether they recompute. The backward pass comes to those that do when the others have freed
    # what they kept.
    parts = {False: layers[again:], True: layers[:again]}
    ways = {way: Counter(part) for way, part in parts.items() if part}
    count = max(1, train.micro_batch_tokens // row)

    def book(kind: str, layers: int, recomputed: bool, **options: Any) -> _Book:
        section = model.model_copy(update={"gradient_checkpointing": recomputed})
        return _book(_shortened(config, kind, layers), train, section, on_gpu=on_gpu, **options)

    @cache
    def kept(kind: str, way: bool) -> int:
        # Rows are equal, and none sees another: a layer keeps as much of each.
        options: Any = {"lengths": (row,), "response": 1, "backward": False}
        one, two = (book(kind, layers, way, **options).kept for layers in (1, 2))
        return (two - one) * count

    try:
        left = {(kind, way): n for way, kinds in ways.items() for kind, n in kinds.items()}
        most = late = 0
        for way, kinds in ways.items():
            ((kind, number),) = kinds.most_common(1)
            begun = min(_BEGUN, number)
            found = book(kind, begun, way, lengths=(row,) * count, response=response)
            left[kind, way] -= begun
            rest = sum(kept(*each) * n for each, n in left.items() if n)
            most, late = max(most, found.forward + rest, found.early + rest), found.late
            left = {each: n for each, n in left.items() if each[1] is not way}
    except Exception as error:  # a model of anyone may look at numbers anywhere
        logger.debug("activations were not counted: %s: %s", type(error).__name__, error)
        return None
    # When the passes reach the embedding no layer keeps anything any more.
    return max(most, late)


def _shortened(config: Any, kind: str, layers: int) -> Any:
    """The config with so many layers, all of one kind."""
    short = copy.deepcopy(config)
    text = short.get_text_config()
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = [kind] * layers
    return short


@dataclass(slots=True)
class _Book:
    """Bytes that live beside weights and gradients in the passes of one micro-batch."""

    forward: int = 0
    """Most in the forward pass, head included."""
    kept: int = 0
    """Left after it, for the backward pass."""
    early: int = 0
    """Most in the backward pass as long as all layers but the last keep theirs."""
    late: int = 0
    """Most from then on."""


def _book(
    config: Any,
    train: TrainSection,
    section: ModelSection,
    lengths: tuple[int, ...],
    *,
    response: int,
    on_gpu: bool,
    backward: bool = True,
) -> _Book:
    """Run one micro-batch."""
    model = _model(config, train, section)
    device = torch.device("meta")
    with ExitStack() as stack:
        if not on_gpu:  # tensors that take the way of a CPU, and hold nothing
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            device = torch.device("cpu")
            _move(model)
        batch = _batch(lengths, response=response, device=device)
        live = stack.enter_context(_WithoutNumbers(model))
        stack.enter_context(exact_passes(model, checkpointing=section.gradient_checkpointing))
        kernel = _KERNEL if section.attention == "auto" else _FUSED
        for module in model.modules():
            if getattr(module, "config", None) is not None:
                module.config._attn_implementation = kernel
        out = packed_log_probs(
            model, batch, loss_of=lambda found: (found.log_probs_R * batch.weights_R).sum()
        )
        loss = (out.log_probs_R * batch.weights_R).sum()
        found = _Book(forward=live.peak, kept=live.bytes)
        if backward:
            found.early, found.late = _backward(model, loss, live)
        return found


def _backward(model: Any, loss: Tensor, live: LiveBytes) -> tuple[int, int]:
    """Most bytes until a layer before the last has a gradient, and after that."""
    last = max((index for name, _ in model.named_parameters() if (index := _layer(name)) >= 0))
    early: list[int] = []

    def forget(name: str, param: Tensor) -> None:
        # Sums of gradients are counted apart: here that of one weight at a time exists.
        param.grad = None
        if not early and 0 <= _layer(name) < last:
            early.append(live.take_peak())

    for name, param in model.named_parameters():
        if param.requires_grad:
            param.register_post_accumulate_grad_hook(partial(forget, name))
    live.take_peak()
    loss.backward()
    return (early[0], live.peak) if early else (live.peak, live.peak)


def _layer(name: str) -> int:
    """The layer that a parameter belongs to; -1 of one outside."""
    found = re.search(r"\.(\d+)\.", name)
    return int(found[1]) if found else -1


def _model(config: Any, train: TrainSection, section: ModelSection) -> Any:
    """The model as the trainer has it, without memory."""
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, section.dtype))
        if train.lora is not None:
            add_adapters(model, train.lora, base="")
            for _, layer in adapted_layers(model):  # peft leaves those without memory as they are
                layer.lora_A.to(model.dtype)
                layer.lora_B.to(model.dtype)
    if section.head_dtype == "float32":
        use_float32_head(model)
    recompute_layers(model, section.gradient_checkpointing)
    return model.eval()


def _move(model: Any) -> None:
    """Give a model on `meta` tensors of the CPU; tied ones stay tied."""
    moved: dict[int, Any] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is None:
                    continue
                if id(tensor) not in moved:
                    new = torch.empty(tensor.shape, dtype=tensor.dtype)
                    if isinstance(tensor, torch.nn.Parameter):
                        new = torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
                    moved[id(tensor)] = new
                held[name] = moved[id(tensor)]


class _Kernel(torch.autograd.Function):
    """Keeps what one fused kernel keeps for its backward pass, and computes nothing."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, again: bool) -> Tensor:
        """Keys and values stay as they are, however many query heads share them."""
        _, heads, tokens, _ = query.shape
        if again:  # the backward pass computes it again
            ctx.save_for_backward(query, key, value)
            return query.new_empty((1, tokens, heads, value.shape[-1]))
        out = query.new_empty((1, heads, tokens, value.shape[-1]))
        ctx.save_for_backward(query, key, value, out, query.new_empty((heads, tokens)).float())
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Three gradients of the shapes of the inputs."""
        return *(torch.empty_like(tensor) for tensor in ctx.saved_tensors[:3]), None


def _kernel(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    return _Kernel.apply(query, key, value, query.device.type == "cpu"), None


def _fused_kernel(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    return _Kernel.apply(query, key, value, False), None


AttentionInterface.register(_KERNEL, _kernel)
AttentionInterface.register(_FUSED, _fused_kernel)


def _batch(lengths: tuple[int, ...], *, response: int, device: torch.device) -> TensorBatch:
    """Rows without sharing whose last `response` tokens the loss looks at."""
    tokens = sum(lengths)
    asked = sum(min(length - 1, response) for length in lengths)

    def zeros(count: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(count, dtype=dtype, device=device)

    def floats() -> Tensor:
        return zeros(asked, torch.float32)

    return TensorBatch(
        lengths=lengths,
        parents=(-1,) * len(lengths),
        input_ids_T=zeros(tokens),
        position_ids_T=zeros(tokens),
        source_A=zeros(asked),
        target_A=zeros(asked),
        index_A=zeros(asked),
        temperature_A=None,
        mask_R=zeros(asked, torch.bool),
        sampled_R=zeros(asked, torch.bool),
        sequence_R=zeros(asked),
        num_sequences=len(lengths),
        rollout_log_probs_R=floats(),
        advantages_R=floats(),
        weights_R=floats(),
    )


class LiveBytes(TorchDispatchMode):
    """Counts the storages that operations make, as long as something refers to them."""

    def __init__(self, model: Any = None) -> None:
        """Begin at nothing; what the model holds is not counted."""
        super().__init__()
        # A view of a weight shows the weight's own storage, which is counted elsewhere.
        weights = () if model is None else (*model.parameters(), *model.buffers())
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in weights}
        self.bytes = 0
        """Bytes that live now."""
        self.peak = 0
        """Most that lived at once."""

    def take_peak(self) -> int:
        """The peak so far; from here on another one is looked for."""
        found, self.peak = self.peak, self.bytes
        return found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._note(leaf)
        return out

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = size = storage.nbytes()
            self.bytes += size
            self.peak = max(self.peak, self.bytes)
            weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self.bytes -= self._sizes.pop(key)


class _WithoutNumbers(LiveBytes):
    """The same over tensors without memory: answers what is asked about their numbers."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (torch.ops.aten.equal.default, torch.ops.aten.allclose.default):
            return True  # a gradient that was guessed: right, as in every step
        if func is torch.ops.aten._local_scalar_dense.default:
            return 0  # the last position of a row, say: within any limit
        if func is torch.ops.aten._grouped_mm.default:
            out = _products_of_experts(*args, **(kwargs or {}))
            self._note(out)
            return out
        return super().__torch_dispatch__(func, types, args, kwargs)


def _products_of_experts(
    left: Tensor, right: Tensor, offs: Tensor | None = None, *_: Any, **__: Any
) -> Tensor:
    """The shape of a grouped product, which torch knows without memory in bfloat16 alone."""
    if left.dim() == right.dim() == 2:
        assert offs is not None
        return left.new_empty((len(offs), left.shape[0], right.shape[1]))
    return left.new_empty((*left.shape[:-1], right.shape[-1]))
