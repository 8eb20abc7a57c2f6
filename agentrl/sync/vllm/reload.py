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
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    get_layerwise_info,
    initialize_layerwise_reload,
)
from vllm.platforms import current_platform

from agentrl.errors import SyncError, some_of


class ReloadableModel:
    """A model of a worker, and which names are known to fill it."""

    def __init__(self, model: nn.Module, config: ModelConfig) -> None:
        """Keep both; nothing is changed before `begin`."""
        self.model = model
        self.tied = tied_heads(model)
        """Heads with the weight of the embeddings, as found: vLLM goes by the files, not a flag."""
        self._config = config
        self._kernels: list[tuple[Any, Any]] = []
        self._proved: set[str] = set()
        """Names that are known to have a place, each, and to fill the model, together."""

    def begin(self) -> None:
        """Have the layers wait for their weights."""
        self._kernels = _take_expert_kernels(self.model)
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
        self._prepare_tied_heads()

    def _prepare_tied_heads(self) -> None:
        """Make the layout of heads that are tied to the embeddings again, from the new weights.

        They are given no weight of their own, so the reload passes them over; on a CPU they
        multiply with a packed copy, and would go on sampling from the old one.
        """
        for name in self.tied:
            head: Any = self.model.get_submodule(name)
            head.quant_method.process_weights_after_loading(head)

    def _load(self, stream: _Stream) -> None:
        # Name by name the first time, slower, to prove that every name has its place.
        loaded = self._load_all(stream) if self._proved else self._load_each(stream)
        self._check_complete(loaded)
        if self._proved and (changed := self._proved ^ stream.seen):
            raise SyncError(f"other names than in the last update: {some_of(sorted(changed), 8)}")
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
            if places is not None and not places and not self._of_tied_head(name):
                unused.append(name)
            loaded |= places or set()
        if unused:
            raise SyncError(
                f"{len(unused)} weights have no place in {type(self.model).__name__}: "
                f"{some_of(unused, 8)}"
            )
        return loaded

    def _of_tied_head(self, name: str) -> bool:
        flag = bool(getattr(self._config.hf_text_config, "tie_word_embeddings", False))
        return name.removesuffix(".weight") in self.tied or (flag and name.startswith("lm_head."))

    def _put(self, weights: Iterable[tuple[str, Tensor]]) -> set[str] | None:
        """Names of the parameters that were filled; None from models that do not report them."""
        model: Any = self.model
        return model.load_weights(weights)

    def _check_complete(self, loaded: set[str]) -> None:
        # Quantised models make parameters that no checkpoint has; vLLM itself looks no closer.
        if self._config.quantization is not None or not loaded:
            return
        missing = self._unfilled(loaded)
        for name, layer in self.model.named_modules():
            info = get_layerwise_info(layer)
            total = info.load_numel_total
            # A fused parameter counts as loaded as soon as one of its parts is.
            if isinstance(layer, LinearBase) and total and 0 < info.load_numel < total:
                missing.append(f"{name} ({total - info.load_numel} of {total} elements)")
        kind = type(self.model).__name__
        if missing:
            raise SyncError(
                f"{len(missing)} parameters of {kind} got no weight: {some_of(missing, 8)}"
            )
        if passed := self._passed_over(loaded):
            raise SyncError(
                f"vLLM's {kind} copies {len(passed)} weights past the loaders of its layers, so a "
                f"running server goes on with its first ones: {some_of(passed, 8)}; set "
                "serving.engine: embedded"
            )

    def _passed_over(self, loaded: set[str]) -> list[str]:
        """Parameters that were reported as loaded while their layer waits for its first weight."""
        return [
            f"{name}.{leaf}"
            for name, layer in self.model.named_modules()
            if (info := get_layerwise_info(layer)).load_numel_total
            and not info.load_numel
            and not is_deferred_attention_layer(layer)
            for leaf, _ in layer.named_parameters(recurse=False)
            if f"{name}.{leaf}" in loaded and not self._of_tied_head(f"{name}.{leaf}")
        ]

    def _unfilled(self, loaded: set[str]) -> list[str]:
        """Parameters of which no name was loaded; models may know a layer under several."""
        named = dict(self.model.named_parameters(remove_duplicate=False))
        filled = {id(named[name]) for name in loaded if name in named}
        return sorted(
            name
            for name, parameter in self.model.named_parameters()
            # While layers wait for their weights, a tied head looks like a parameter of its own.
            if id(parameter) not in filled and not self._of_tied_head(name)
        )

    def _put_together(self) -> None:
        """Drop what waits in half-loaded layers and give all layers their tensors back."""
        for layer in self.model.modules():
            info = get_layerwise_info(layer)
            if info.can_load():
                info.loaded_weights = []
                info.load_numel = 0
        finalize_layerwise_reload(self.model, self._config)
        for method, kernel in self._kernels:
            if method.moe_kernel is None:
                method.moe_kernel = kernel


def tied_heads(model: nn.Module) -> dict[str, str]:
    """Name of the embeddings by the name of a head that is another layer with the same weight."""
    layers = [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, VocabParallelEmbedding) and hasattr(layer, "weight")
    ]
    inputs = {id(one.weight): name for name, one in layers if not isinstance(one, ParallelLMHead)}
    return {
        name: inputs[id(head.weight)]
        for name, head in layers
        if isinstance(head, ParallelLMHead) and id(head.weight) in inputs
    }


def _take_expert_kernels(model: nn.Module) -> list[tuple[Any, Any]]:
    """Have mixtures of experts on a CPU made ready as on the first load; methods and kernels.

    vLLM packs experts for its CPU kernels only where a layer has no kernel yet, and copies the
    unpacked weights over the packed ones where it has.
    """
    if not current_platform.is_cpu():
        return []
    methods: list[Any] = [getattr(layer, "quant_method", None) for layer in model.modules()]
    held = [(one, one.moe_kernel) for one in methods if getattr(one, "moe_kernel", None)]
    for method, _ in held:
        method.moe_kernel = None
    return held


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
