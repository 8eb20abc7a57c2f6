"""A second copy of a CPU worker's model, which takes new weights while the first one serves.

Packing weights for the kernels of a CPU takes several times as long as copying them. So it is done
into the copy, before the server is paused, and the pause only swaps the tensors and the packed
products of the two. The price is the memory of the weights once more; where there is too little of
it, and for models with layers that pack in ways of their own, there is no copy. Nor is there on
GPUs, whose memory is the cache's.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.utils import (
    initialize_model,
    process_weights_after_loading,
)
from vllm.utils.torch_utils import set_default_torch_dtype

from agentrl.sync.shm.segment import available_memory
from agentrl.sync.vllm.reload import ReloadableModel

logger = logging.getLogger(__name__)

_PRODUCT = "cpu_linear"
"""Attribute of a layer: the function that multiplies with its packed weights."""
_HEADROOM = 3
"""Times the weights that must be free: the copy, what is packed, and what others may still take."""


class ModelTwin:
    """The model that serves and a spare one of the same layers."""

    def __init__(self, serving: nn.Module, spare: ReloadableModel) -> None:
        """Keep both; `spare` is loaded, `swap` gives its weights to `serving`."""
        self.spare = spare
        """The copy that takes the next weights."""
        self._serving = serving

    def swap(self) -> None:
        """Exchange the weights of the two; no request may be computed meanwhile.

        Buffers stay: those that a checkpoint holds are constants, and a worker has loaded them.
        """
        # Each tensor once, also where two layers share it.
        spare = dict(self.spare.model.named_parameters())
        for name, parameter in self._serving.named_parameters():
            other = spare[name]
            parameter.data, other.data = other.data, parameter.data
        layers = dict(self.spare.model.named_modules())
        for name, layer in self._serving.named_modules():
            if hasattr(layer, _PRODUCT):
                ours, theirs = vars(layer), vars(layers[name])
                ours[_PRODUCT], theirs[_PRODUCT] = theirs[_PRODUCT], ours[_PRODUCT]


def make_twin(
    config: VllmConfig, device: torch.device, serving: ReloadableModel
) -> ModelTwin | None:
    """Make the second copy; None where there can be none.

    Called while nothing is computed: it changes the default dtype of the process.
    """
    model = serving.model
    if device.type != "cpu" or not _packs_plainly(model):
        return None
    if available_memory() < _HEADROOM * _weight_bytes(model):
        logger.info("too little memory for a second copy of the weights: syncs pause longer")
        return None
    own = copy.copy(config)
    own.compilation_config = copy.copy(config.compilation_config)
    # Attention layers are registered by name; those of the copy never compute.
    own.compilation_config.static_forward_context = {}
    with set_default_torch_dtype(config.model_config.dtype), device:
        with _own_rotary_embeddings():
            spare = initialize_model(own)
            for head, embeddings in serving.tied.items():
                _tie(spare, head, embeddings)
        if set(spare.modules()) & set(model.modules()):
            logger.info("layers of this model are shared by all copies: syncs pause longer")
            return None
        with set_current_vllm_config(own):
            process_weights_after_loading(spare, config.model_config, device)
    return ModelTwin(model, ReloadableModel(spare.eval(), config.model_config))


@contextlib.contextmanager
def _own_rotary_embeddings() -> Iterator[None]:
    """Make rotary embeddings of a model's own.

    vLLM has one for all models of a process. A reload takes the layers of the copy apart, and with
    them would take apart what the first model computes with at that moment.
    """
    shared = dict(rotary_embedding._ROPE_DICT)
    rotary_embedding._ROPE_DICT.clear()
    try:
        yield
    finally:
        rotary_embedding._ROPE_DICT.clear()
        rotary_embedding._ROPE_DICT.update(shared)


def _tie(model: nn.Module, head: str, embeddings: str) -> None:
    """Tie as `tied_heads` found it: vLLM does so only after it has read files, which no copy does.

    Args:
        model: as it is made.
        head: name of the layer.
        embeddings: name of the layer whose weight the head has.
    """
    path, _, leaf = head.rpartition(".")
    layer: Any = model.get_submodule(head)
    setattr(model.get_submodule(path), leaf, layer.tie_weights(model.get_submodule(embeddings)))


def _packs_plainly(model: nn.Module) -> bool:
    """All that is packed is packed into `cpu_linear`."""
    plain = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
    methods = [getattr(layer, "quant_method", None) for layer in model.modules()]
    return all(method is None or type(method) in plain for method in methods)


def _weight_bytes(model: nn.Module) -> int:
    """Bytes of the weights as they are loaded, before any is packed."""
    tensors = (get_layerwise_info(layer).restore_metadata[0] for layer in model.modules())
    return sum(tensor.nbytes for parameters in tensors for tensor in parameters.values())
