"""Rotary embeddings whose frequencies follow the longest sequence that they are given.

Up to a limit they are those that the model was first trained with. Beyond it every row of a
micro-batch, and what a cache holds of an earlier turn, would be read with other positions; vLLM
chooses once, by the context of the server. So no row may pass the limit.
"""

from __future__ import annotations

from typing import Any

from agentrl.errors import ConfigError

_STRETCHED = ("yarn", "linear")
_BY_LENGTH = ("longrope", "dynamic")


def context_limit(config: Any) -> int | None:
    """Most tokens that a model was made for; None where its config names no limit.

    Frequencies that are stretched by a factor (yarn, linear) reach as many times further than the
    positions that the model was first trained with.

    Args:
        config: of `transformers`.
    """
    text = config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    rotary = getattr(text, "rope_parameters", None) or {}
    if positions is None or rotary.get("rope_type") not in _STRETCHED:
        return positions
    first = rotary.get("original_max_position_embeddings") or positions
    return max(positions, int(first * rotary.get("factor", 1.0)))


def rotary_limit(config: Any) -> int | None:
    """Most tokens of a row that keep the frequencies of the model; None where they never change.

    Args:
        config: of `transformers`.
    """
    text = config.get_text_config()
    rotary = getattr(text, "rope_parameters", None) or {}
    parts = (rotary, *(found for found in rotary.values() if isinstance(found, dict)))
    limits = [
        (part["rope_type"] == "longrope" and part.get("original_max_position_embeddings"))
        or text.max_position_embeddings
        for part in parts
        if part.get("rope_type") in _BY_LENGTH
    ]
    return min(limits, default=None)


def check_row_length(config: Any, tokens: int, *, who: str, key: str) -> None:
    """Refuse a model whose positions would depend on the rows beside a row.

    Args:
        config: of `transformers`.
        tokens: most tokens of a row.
        who: names the model at the beginning of the message.
        key: of the run file that bounds a row, or its name.

    Raises:
        ConfigError: a row may be longer than `rotary_limit`.
    """
    limit = rotary_limit(config)
    if limit is not None and tokens > limit:
        raise ConfigError(
            f"{who} has a rotary embedding (rope_type longrope or dynamic) with other frequencies "
            f"beyond {limit} tokens, and a row may have {tokens} ({key}): every row beside a "
            "longer one, and each cached turn, would be read with the wrong positions; keep rows "
            f"at {limit} tokens or below, or take a model with fixed frequencies (yarn, llama3)"
        )
