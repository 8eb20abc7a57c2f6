"""New weights into one model of a vLLM worker, layer by layer, whole or not at all.

vLLM reloads layer by layer, so that layouts which kernels have packed are made again. Invariants:
every parameter of the model is loaded and every name that is sent is used, or the update fails and
says which is not; after a failure the layers are put together again, so that the next update starts
from a whole model. What that model then holds may be partly old and partly new: nothing may be
sampled from it until an update succeeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from vllm.config import ModelConfig
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    get_layerwise_info,
    initialize_layerwise_reload,
)

from agentrl.errors import SyncError

_SHOWN = 8
"""Names in an error."""


class ReloadableModel:
    """A model of a worker, and which names are known to fill it."""

    def __init__(self, model: nn.Module, config: ModelConfig) -> None:
        """Keep both; nothing is changed before `begin`."""
        self.model = model
        self._config = config
        self._proved: set[str] = set()
        """Names that are known to have a place, each, and to fill the model, together."""

    def begin(self) -> None:
        """Have the layers wait for their weights."""
        initialize_layerwise_reload(self.model)

    def load(self, weights: Iterator[tuple[str, Tensor]], *, keeps: bool) -> None:
        """Load all weights of one version, or raise and leave a model that can be loaded again.

        Args:
            weights: checked before they are yielded.
            keeps: tensors stay valid after the next one has been asked for.

        Raises:
            SyncError: a name without a place, a place without a weight, or a shape that differs.
        """
        try:
            self._load(_Stream(weights, keeps=keeps))
        except BaseException:
            # Also when the worker is stopped: layers must not stay taken apart.
            self._proved = set()
            self._put_together()
            raise

    def finish(self) -> None:
        """Bring the layers into the layout of their kernels."""
        finalize_layerwise_reload(self.model, self._config)
        self._prepare_tied_head()

    def _prepare_tied_head(self) -> None:
        """Make the layout of a head that is tied to the embeddings again, from the new weights.

        It is given no weight of its own, so the reload passes it over; on a CPU it multiplies with
        a packed copy, and would go on sampling from the old one.
        """
        head = getattr(self.model, "lm_head", None)
        method = getattr(head, "quant_method", None)
        if self._tied and method is not None:
            method.process_weights_after_loading(head)

    def _load(self, stream: _Stream) -> None:
        # Name by name the first time, slower, to prove that every name has its place.
        loaded = self._load_all(stream) if self._proved else self._load_each(stream)
        self._check_complete(loaded)
        if self._proved and (changed := self._proved ^ stream.seen):
            raise SyncError(f"other names than in the last update: {_listed(sorted(changed))}")
        self._proved = stream.seen

    def _load_all(self, stream: _Stream) -> set[str]:
        try:
            return self._put(iter(stream)) or set()
        except SyncError:
            raise
        except Exception as error:  # vLLM's loaders raise all kinds, without the name
            raise SyncError(f"{stream.current} does not fit the model: {error!r}") from error

    def _load_each(self, stream: _Stream) -> set[str]:
        loaded: set[str] = set()
        unused: list[str] = []
        for name, tensor in stream:
            try:
                places = self._put([(name, tensor)])
            except Exception as error:  # vLLM's loaders raise all kinds, without the name
                raise SyncError(f"{stream.current} does not fit the model: {error!r}") from error
            if (
                places is not None
                and not places
                and not (self._tied and name.startswith("lm_head."))
            ):
                unused.append(name)
            loaded |= places or set()
        if unused:
            raise SyncError(
                f"{len(unused)} weights have no place in {type(self.model).__name__}: "
                f"{_listed(unused)}"
            )
        return loaded

    @property
    def _tied(self) -> bool:
        return bool(getattr(self._config.hf_text_config, "tie_word_embeddings", False))

    def _put(self, weights: Iterable[tuple[str, Tensor]]) -> set[str] | None:
        """Names of the parameters that were filled; None from models that do not report them."""
        model: Any = self.model
        return model.load_weights(weights)

    def _check_complete(self, loaded: set[str]) -> None:
        # Quantised models make parameters that no checkpoint has; vLLM itself looks no closer.
        if self._config.quantization is not None or not loaded:
            return
        missing = sorted({name for name, _ in self.model.named_parameters()} - loaded)
        if self._tied:
            # While layers wait for their weights, a tied head looks like a parameter of its own.
            missing = [name for name in missing if not name.startswith("lm_head.")]
        # A fused parameter counts as loaded as soon as one of its parts is.
        for name, layer in self.model.named_modules():
            info = get_layerwise_info(layer)
            total = info.load_numel_total
            if isinstance(layer, LinearBase) and total and 0 < info.load_numel < total:
                missing.append(f"{name} ({total - info.load_numel} of {total} elements)")
        if missing:
            raise SyncError(
                f"{len(missing)} parameters of {type(self.model).__name__} got no weight: "
                f"{_listed(missing)}"
            )

    def _put_together(self) -> None:
        """Drop what waits in half-loaded layers and give all layers their tensors back."""
        for layer in self.model.modules():
            info = get_layerwise_info(layer)
            if info.can_load():
                info.loaded_weights = []
                info.load_numel = 0
        finalize_layerwise_reload(self.model, self._config)


class _Stream:
    """Remembers which tensor is being loaded, and keeps alive what vLLM buffers."""

    def __init__(self, weights: Iterator[tuple[str, Tensor]], *, keeps: bool) -> None:
        self._weights = weights
        self._keeps = keeps
        self.current = "no weight"
        self.seen: set[str] = set()

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._weights:
            self.current = f"weight {name!r} of shape {tuple(tensor.shape)}"
            self.seen.add(name)
            # A layer's parts wait until the layer is whole, longer than a bucket stays filled.
            yield name, tensor if self._keeps else tensor.clone()


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
