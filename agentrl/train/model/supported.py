"""Which models the trainer reads as they are meant: a look at the model before it is trained.

The trainer runs the body of a model with its own attention and its head on chosen tokens. What a
model does beside that (layers between body and head, say) would be left out without a sound, and
log-probabilities would be those of another model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from agentrl.errors import ConfigError, TrainError
from agentrl.models.logit_map import LogitMap, body_of, logit_map
from agentrl.models.rotary import rotary_limit
from agentrl.train.model.attention import packed_attention
from agentrl.train.model.segments import Segments
from agentrl.train.model.stateful_layers import other_layers

_PROBE = 4
"""Tokens that are read to see what a model does with them."""


def check_readable(model: Any) -> None:
    """Refuse a model whose numbers the trainer would get wrong. Reads a few tokens once.

    Args:
        model: a whole `transformers` model; a critic's body is looked at, too.

    Raises:
        ConfigError: says what the model does that the trainer leaves out.
    """
    body = body_of(model)
    if not (getattr(body, "_supports_attention_backend", False) or other_layers(body)):
        raise ConfigError(
            f"model.path: the layers of {type(body).__name__} have an attention of their own, so "
            "rows in one micro-batch would see each other; train a model whose attention goes "
            "through transformers' AttentionInterface (_supports_attention_backend)"
        )
    ids = torch.arange(1, 1 + _PROBE, device=next(model.parameters()).device)[None]
    try:
        with torch.no_grad(), packed_attention(model):
            body(input_ids=ids, use_cache=False, segments=Segments.of_rows([_PROBE]))
    except TrainError as error:
        raise ConfigError(f"model.path: {error}") from None
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is None or body is model:
        return  # a critic, or what `packed_log_probs` refuses by name
    seen: dict[str, Tensor] = {}
    found = logit_map(model)

    def keep(module: Any, args: tuple[Any, ...], out: Tensor) -> None:
        seen["hidden"] = args[0]
        seen["logits"] = found.apply_(out.to(torch.promote_types(out.dtype, torch.float32)).clone())

    hook = head.register_forward_hook(keep)
    body_hook = body.register_forward_hook(
        lambda module, args, out: seen.update(body=out.last_hidden_state)
    )
    try:
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
        body_hook.remove()
    parts = (("hidden", "body", "before"), ("logits", "model", "after"))
    seen["model"] = logits
    # Some models call a part of their body, which says nothing about what the head is given.
    seen.setdefault("body", seen["hidden"])
    seen["body"] = found.into_head(seen["body"])
    for own, whole, where in parts:
        got, want = seen[own], seen[whole]
        # A model that scales or caps its logits rounds each of its steps.
        close = 0.0 if found == LogitMap() else 8 * torch.finfo(want.dtype).eps
        if not torch.allclose(got.to(want.dtype), want, rtol=close, atol=close):
            raise ConfigError(
                f"model.path: {type(model).__name__} changes its numbers {where} the head, and not "
                "by a scale or a soft cap alone, which the trainer computes; train a model with a "
                "linear head"
            )


def reads_length(model: Any) -> bool:
    """True if the position embeddings of a model depend on the longest row it has read."""
    body = body_of(model)
    return hasattr(body, "config") and rotary_limit(body.config) is not None
