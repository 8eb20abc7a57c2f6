"""Floating-point operations of a training step, by one formula.

    a token that is read      2 P + sum over layers of 2 c H (d_k + d_v)
    a position that is trained                                   2 P_head
    backward    once more for the gradient of the inputs of each product,
                once more for that of its weights where they are trained

P: parameters in matrix products of the body, of experts those that a token is sent to. c: tokens
that this one attends to, itself included, within the window of the layer. H, d_k, d_v: query heads
and widths of keys and values. A token of a shared prefix is read once and counts once. Not counted:
activations that are recomputed, passes without a gradient (old policy, reference), norms, softmax
and the state of recurrent layers. Without windows and sharing this is appendix B of PaLM
(arXiv 2204.02311), whose 12 L H Q T lets every token attend to all T of its sequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from agentrl.batch.records import MicroBatch, PackedBatch

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
_NO_SCORES = ("linear_attention", "mamba", "mamba2", "conv", "recurrent", "moe", "mlp")
"""Kinds of layers without keys that later tokens look at, by `layer_types`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlops:
    """Numbers of a model from which the operations of an update follow."""

    trained: float
    """P of the weights that are trained."""
    frozen: float
    """P of the others."""
    head: int
    """P_head."""
    head_trained: bool
    """Whether the weights of the head are trained."""
    width: int
    """H (d_k + d_v)."""
    windows: Mapping[int | None, int]
    """Attention layers by the tokens that they look back on; None for all."""

    @classmethod
    def of(cls, model: Any) -> ModelFlops | None:
        """Count the weights of a `transformers` language model, or of a critic's body.

        Also where ranks hold parts. None for a model whose experts, heads or pictures are not
        understood.
        """
        config = model.config.get_text_config()
        if hasattr(model.config, "vision_config") or not hasattr(config, "num_attention_heads"):
            return None
        head = getattr(model, "get_output_embeddings", lambda: None)()
        head_weight = getattr(head, "weight", None)
        share = _expert_share(config)
        sizes = {True: 0.0, False: 0.0}
        for name, parameter in _products(model):
            if parameter is head_weight:
                continue
            routed = ".experts." in name
            if routed and share is None:
                return None
            size = _numel(parameter) * (share if routed and share is not None else 1.0)
            sizes[parameter.requires_grad] += size
        return cls(
            trained=sizes[True],
            frozen=sizes[False],
            head=0 if head_weight is None else _numel(head_weight),
            head_trained=head_weight is not None and head_weight.requires_grad,
            width=config.num_attention_heads * sum(_head_widths(config)),
            windows=_windows(config),
        )

    def of_update(self, update: PackedBatch) -> float:
        """Operations of the forward and backward passes of the micro-batches that are here."""
        return sum(self._of_micro(micro) for micro in update.micro_batches if micro.rows)

    def _of_micro(self, micro: MicroBatch) -> float:
        context_T = micro.position_ids_T + 1
        seen = sum(
            layers * float(np.minimum(context_T, window or context_T).sum())
            for window, layers in self.windows.items()
        )
        body = (6 * self.trained + 4 * self.frozen) * micro.num_tokens
        head = (6 if self.head_trained else 4) * self.head * micro.num_action_tokens
        return body + 6 * self.width * seen + head


def _products(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Weights that tokens are multiplied by: no table that is only looked up, no vector."""
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding))
    looked_up = {id(parameter) for table in tables for parameter in table.parameters()}
    for name, parameter in model.named_parameters():
        if len(_shape(parameter)) >= 2 and id(parameter) not in looked_up:
            yield name, parameter


def _shape(parameter: Any) -> tuple[int, ...]:
    """Whole shape, also where DeepSpeed has left an empty tensor in its place."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _numel(parameter: Any) -> int:
    return int(np.prod(_shape(parameter)))


def _expert_share(config: Any) -> float | None:
    """Share of the experts that a token is sent to; None where the config does not tell."""
    experts, chosen = (
        next((found for name in names if isinstance(found := getattr(config, name, None), int)), 0)
        for names in (_EXPERTS, _CHOSEN)
    )
    return chosen / experts if experts and chosen else None


def _head_widths(config: Any) -> tuple[int, int]:
    """Width of the keys and of the values of a head."""
    plain = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    latent = getattr(config, "qk_nope_head_dim", None)
    keys = latent + config.qk_rope_head_dim if latent else plain
    return keys, getattr(config, "v_head_dim", None) or plain


def _windows(config: Any) -> Mapping[int | None, int]:
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    every = getattr(config, "sliding_window", None)
    if kinds is None:
        used = getattr(config, "use_sliding_window", True)
        return {every if used else None: config.num_hidden_layers}
    of_kind = {
        "sliding_attention": every,
        "chunked_attention": getattr(config, "attention_chunk_size", None),
    }
    return Counter(of_kind.get(kind) for kind in kinds if kind not in _NO_SCORES)
