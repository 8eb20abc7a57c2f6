"""Models that go wrong where only one form of reading them shows it; small, but real families."""

from __future__ import annotations

from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

SIZES = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2,
}  # fmt: skip


def model(kind: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A family with random weights, the same on every rank."""
    torch.manual_seed(0)
    made = CONFIG_MAPPING[kind]
    sizes = {key: SIZES[key] for key in SIZES if not isinstance(getattr(made, key, None), property)}
    config = made(**{**sizes, **changes})
    return AutoModelForCausalLM.from_config(config).to(dtype).eval()


def far_window(dtype: torch.dtype = torch.float32) -> Any:
    """A window that no short row reaches."""
    return model("mistral", dtype, sliding_window=4096)


def scaled(made: Any) -> Any:
    """Logits that are scaled behind the head."""
    whole = made.forward

    def forward(*args: Any, **options: Any) -> Any:
        out = whole(*args, **options)
        out.logits = out.logits * 0.5
        return out

    made.forward = forward
    return made


def restless(made: Any) -> Any:
    """Positions that go on from row to row: of rows side by side only their differences count."""
    body = made.base_model
    whole = body.forward

    def forward(*args: Any, **options: Any) -> Any:
        return whole(*args, **{**options, "position_ids": None})

    body.forward = forward
    return made


def endless(made: Any) -> Any:
    """Packed rows and a cache look back without end, and the own forward over a window."""
    for layer in made.base_model.layers:
        _blind(layer.self_attn)
    return made


def _blind(module: Any) -> None:
    whole, config = module.forward, module.config

    def forward(*args: Any, **options: Any) -> Any:
        if "segments" not in options and "kv_step" not in options:
            return whole(*args, **options)
        window = config.sliding_window
        config.sliding_window = None
        try:
            return whole(*args, **options)
        finally:
            config.sliding_window = window

    module.forward = forward


def odd(made: Any) -> Any:
    """A family whose own code raises what nobody expects, of rows that are longer than a trial."""
    body = made.base_model
    whole = body.forward

    def forward(*args: Any, **options: Any) -> Any:
        if _is_long(options, "segments", "kv_step"):
            raise KeyError("layer_mask")
        return whole(*args, **options)

    body.forward = forward
    return made


def _is_long(options: dict[str, Any], *ours: str) -> bool:
    """True for passes of ours over more tokens than those that find how a model is read."""
    return any(name in options for name in ours) and options["input_ids"].numel() > 10


def endless_numbers(made: Any) -> Any:
    """A weight that is no number, which no comparison is smaller than."""
    with torch.no_grad():
        made.base_model.layers[1].mlp.up_proj.weight[3, 3] = torch.nan
    return made


def late(made: Any) -> Any:
    """A body of which packed rows see the layers in another order than the own forward does."""
    body = made.base_model
    whole = body.forward

    def forward(*args: Any, **options: Any) -> Any:
        if not _is_long(options, "segments"):
            return whole(*args, **options)
        body.layers = body.layers[::-1]
        try:
            return whole(*args, **options)
        finally:
            body.layers = body.layers[::-1]

    body.forward = forward
    return made


def stretched(made: Any) -> Any:
    """Scores of one layer that are 5 % too large in packed rows."""
    whole = made.base_model.layers[1].self_attn

    class Stretched(type(whole)):
        def forward(self, *args: Any, **options: Any) -> Any:
            own = self.scaling
            if "segments" in options:
                self.scaling = 1.05 * own
            try:
                return super().forward(*args, **options)
            finally:
                self.scaling = own

    Stretched.__name__ = type(whole).__name__
    whole.__class__ = Stretched
    return made
