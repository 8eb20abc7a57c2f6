"""Which models the trainer reads as they are meant: a look at the model before it is trained.

The trainer runs the body of a model with its own attention and its head on chosen tokens. What a
model does beside that (layers between body and head, say) would be left out without a sound, and
log-probabilities would be those of another model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.models.logit_map import LogitMap, body_of, logit_map
from agentrl.models.rotary import rotary_limit
from agentrl.train.model.attention import reading_of_model

_PROBE = 4
"""Tokens that are read to see what a model does with them."""
_AHEAD = 256
"""Times the rounding of the dtype that a later token may move earlier ones by: experts compute
those that are sent to them together."""


def check_readable(model: Any, *, device: torch.device | None = None) -> None:
    """Refuse a model whose numbers the trainer would get wrong. Reads a few tokens once.

    Args:
        model: a `transformers` model, whole or run by what holds its parts; a critic's body is
            looked at, too.
        device: that it computes on; None is the one of its weights.

    Raises:
        ConfigError: says what the model does that the trainer leaves out, or that it sees ahead.
    """
    body = body_of(model)
    ids = torch.arange(1, 1 + _PROBE, device=device or next(model.parameters()).device)[None]
    _check_causal(body, ids)
    reading_of_model(model)
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


@torch.no_grad()
def _check_causal(body: Any, ids: Tensor) -> None:
    """Refuse a body in which a token sees the ones behind it: it has no log-probabilities."""
    other = ids.clone()
    other[0, -1] += 1
    one, two = (
        body(input_ids=each, use_cache=False).last_hidden_state[0, :-1] for each in (ids, other)
    )
    rounding = min(0.02, _AHEAD * torch.finfo(one.dtype).eps)
    if (one - two).abs().max() > rounding * one.abs().max():
        raise ConfigError(
            f"model.path: in {type(body).__name__} a token sees the ones behind it, so it is no "
            "causal language model; train one that is, or set is_decoder in its config.json, "
            "expected true"
        )


def reads_length(model: Any) -> bool:
    """True if the position embeddings of a model depend on the longest row it has read."""
    body = body_of(model)
    return hasattr(body, "config") and rotary_limit(body.config) is not None
