"""Compares the attention of every layer in float32, with the weights of one layer at a time in it.

Rounding in 16 bits explains some tenths of a nat at the end of a model, and with them a scale that
is 5 % off in one layer. A copy of the whole model in float32 shows it, where there is room for one.
Here the attention of each layer is computed once more while its weights are at hand: from the same
hidden states, as the own forward calls it and as packed rows do, by a copy in float32 that is gone
before the next layer. Nothing adds up from layer to layer, so nothing but a fault is far off.

Legend: `N` rows, `L` tokens of each, `T` packed tokens, `E` width of the hidden states.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from agentrl.batch.tensors import TensorBatch
from agentrl.models.bits import FourBitLinear
from agentrl.models.own_forward import NARROW_DTYPES
from agentrl.models.proof import gaps, tolerated
from agentrl.train.model.kernels.choose import kernels_used, widened_kernel
from agentrl.train.model.segments import Segments, path_ranges

_HOOKS = ("forward_hooks", "forward_pre_hooks", "forward_hooks_with_kwargs",
          "forward_pre_hooks_with_kwargs", "forward_hooks_always_called", "backward_hooks",
          "backward_pre_hooks")  # fmt: skip

_SHARING = ("is_kv_shared_layer", "store_full_length_kv")
"""Layers that take or leave keys for others do so in the dtype of the model (Gemma 3n and 4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OwnCall:
    """One call of a layer's attention in the own forward."""

    hidden_NLE: Tensor
    """What it was given, in the dtype of the model."""
    out_NLE: Tensor
    """What it gives for it in float32."""
    tolerance: float
    """As of `tolerated`."""


@dataclass(slots=True)
class LayerComparison:
    """Inputs and outputs of layers; fed by the own forward of a model, then by packed rows."""

    gaps: dict[str, Tensor] = field(default_factory=dict)
    """Difference at each packed token by layer, in parts of the size of what it gives."""
    tolerances: dict[str, float] = field(default_factory=dict)
    """Largest mean difference that rounding in float32 explains, by layer."""
    error: Exception | None = None
    """The first layer that could not be computed in float32; nothing is compared then."""
    _calls: dict[str, list[_OwnCall]] = field(default_factory=lambda: defaultdict(list))

    @property
    def worst(self) -> str:
        """Name of the layer that is furthest from what rounding explains."""

        def share(name: str) -> float:
            mean = float(self.gaps[name].mean())
            return mean / self.tolerances[name] if mean == mean else float("inf")

        return max(self.gaps, key=share)

    @contextmanager
    def own(self, model: Any, shape: tuple[int, int]) -> Iterator[None]:
        """Inside, the own forward is watched.

        Args:
            model: whose layers have their weights when they are called.
            shape: (N, L) of the rows that it reads.
        """
        with self._watching(model, partial(self._keep, shape)):
            yield

    @contextmanager
    def packed(self, model: Any, batch: TensorBatch, ids_NL: Tensor) -> Iterator[None]:
        """Inside, a pass over packed rows is watched.

        Args:
            model: as for `own`.
            batch: the rows; beginnings of those of `own`.
            ids_NL: tokens of those.
        """
        rows_T, positions_T = _places(batch, ids_NL)
        with self._watching(model, partial(self._compare, rows_T, positions_T)):
            yield

    @contextmanager
    def _watching(self, model: Any, look: Any) -> Iterator[None]:
        def hook(name: str, module: Any, args: Any, kwargs: Any, out: Any) -> None:
            # Also where a layer has failed: it may be on this rank alone, and the others gather.
            with _whole(module):
                if self.error is not None:
                    return
                try:
                    with widened_kernel(model), kernels_used():  # those of the pass are told apart
                        look(name, module, args, kwargs)
                except Exception as error:  # the code of 150 families may raise anything
                    self.error = error

        with ExitStack() as stack:
            for name, module in _attentions(model):
                # First of all, while a backend that divides weights has them here.
                handle = module.register_forward_hook(
                    partial(hook, name), with_kwargs=True, prepend=True
                )
                stack.callback(handle.remove)
            yield

    def _keep(self, shape: tuple[int, int], name: str, module: Any, args: Any, kwargs: Any) -> None:
        hidden = _hidden(args, kwargs)
        if tuple(hidden.shape[:2]) != shape:
            raise ValueError(f"{name} reads {list(hidden.shape)}, expected rows of {list(shape)}")
        twin = _twin(module)
        out = _called(twin, args, kwargs, hidden.float())
        signs = torch.ones_like(out[:1, :, :1]).expand(*hidden[:1].shape).clone()
        signs.view(-1)[::2] = -1.0
        factor = 1.0 + torch.finfo(torch.float32).eps * signs
        changed = torch.cat([hidden[:1].float() * factor, hidden[1:].float()])
        shaken = _called(twin, args, kwargs, changed)[0]
        tolerance = tolerated(out[0], shaken, torch.float32)
        self._calls[name].append(
            _OwnCall(hidden_NLE=hidden.clone(), out_NLE=out, tolerance=tolerance)
        )

    def _compare(
        self, rows_T: Tensor, positions_T: Tensor, name: str, module: Any, args: Any, kwargs: Any
    ) -> None:
        call = self._calls[name].pop(0)
        hidden = call.hidden_NLE[rows_T, positions_T][None].float()
        out = _called(_twin(module), args, kwargs, hidden)[0]
        before = sum(known.split()[0] == name for known in self.gaps)
        label = f"{name} (call {before + 1})" if before else name  # some share a layer's weights
        self.gaps[label] = gaps(out, call.out_NLE[rows_T, positions_T])
        self.tolerances[label] = call.tolerance


def _attentions(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """The innermost modules that are called an attention, by the names of all families."""
    for name, module in model.named_modules():
        inner = any("Attention" in type(part).__name__ for part in list(module.modules())[1:])
        if "Attention" in type(module).__name__ and not inner and not _shares(module):
            yield name, module


def _shares(module: Any) -> bool:
    return any(getattr(module, name, False) for name in _SHARING)


def _places(batch: TensorBatch, ids_NL: Tensor) -> tuple[Tensor, Tensor]:
    """[T] row and position in it of each packed token, by the tokens up to it."""
    ids_T, known_NL = batch.input_ids_T.tolist(), ids_NL.tolist()
    rows, positions = [0] * len(ids_T), [0] * len(ids_T)
    segments = Segments(lengths=batch.lengths, parents=batch.parents)
    for segment in range(len(segments.lengths)):
        path = [at for span in path_ranges(segments, segment) for at in range(*span)]
        read = [ids_T[at] for at in path]
        row = next(n for n, ids in enumerate(known_NL) if ids[: len(read)] == read)
        for position, at in enumerate(path):
            rows[at], positions[at] = row, position
    device = ids_NL.device
    return torch.tensor(rows, device=device), torch.tensor(positions, device=device)


def _hidden(args: Any, kwargs: Any) -> Tensor:
    found = args[0] if args else kwargs["hidden_states"]
    assert isinstance(found, Tensor), type(found)
    return found


def _called(twin: Any, args: Any, kwargs: Any, hidden: Tensor) -> Tensor:
    """Output of an attention for other hidden states, all in float32."""
    args, kwargs = tree_map(_widened, (args, kwargs))
    if args:
        args = (hidden, *args[1:])
    else:
        kwargs["hidden_states"] = hidden
    out = twin(*args, **kwargs)
    return out if isinstance(out, Tensor) else out[0]


def _widened(found: Any) -> Any:
    narrow = isinstance(found, Tensor) and found.dtype in NARROW_DTYPES
    return found.detach().float() if narrow else found


def _whole(module: Any) -> AbstractContextManager[Any]:
    """Inside, weights that ZeRO-3 divides are here; all ranks call."""
    divided = [param for param in module.parameters() if hasattr(param, "ds_id")]
    return _gathered(divided) if divided else nullcontext()


def _gathered(params: list[Any]) -> Any:
    from deepspeed.runtime.zero import GatheredParameters

    return GatheredParameters(params)


def _twin(module: Any) -> Any:
    """A module in float32 beside one that is left as it is, without what hangs on its calls."""
    if isinstance(module, FourBitLinear):
        parts = {"weight": module.whole(), "bias": module.bias}
        made: Any = nn.Linear(1, 1, bias=False)
    else:
        parts = module._parameters
        made = object.__new__(type(module))
        made.__dict__.update(module.__dict__)
    weights = {
        name: None if part is None else _widened(part.detach()) for name, part in parts.items()
    }
    made._parameters = {
        name: None if part is None else nn.Parameter(part, requires_grad=False)
        for name, part in weights.items()
    }
    made._buffers = {name: _widened(part) for name, part in module._buffers.items()}
    made._modules = {
        name: None if part is None else _twin(part) for name, part in module._modules.items()
    }
    for hooks in _HOOKS:
        setattr(made, f"_{hooks}", OrderedDict())
    return made
