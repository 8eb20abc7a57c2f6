"""Which models may read packed rows: those whose layers look back through attention alone.

A recurrent or convolutional layer passes a state from each token to the next in the order of the
tensor. It would carry one row into the next, and a shared prefix into its last branch only.
"""

from __future__ import annotations

from typing import Any

_KEPT_APART = frozenset({"full_attention", "sliding_attention", "chunked_attention", "moe"})
"""Kinds of layers, as transformers calls them in `config.layer_types`, that segments keep apart."""


def other_layers(model: Any) -> tuple[str, ...]:
    """Kinds of layers in the model that segments do not keep apart."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ()) - _KEPT_APART
    # A critic is no transformers model, its body is.
    if getattr(getattr(model, "base_model", model), "_is_stateful", False):
        kinds = kinds or {"recurrent"}
    return tuple(sorted(kinds))
