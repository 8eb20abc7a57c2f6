"""The bodies of `/inference/v1/generate`: pure functions from and to bytes.

Everything that vLLM would otherwise take from a model's `generation_config.json` is said
explicitly, so that a turn is sampled from softmax(logits / temperature) and from nothing else:
no top-k, no penalties, no end token but those we name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from agentrl.errors import EngineError
from agentrl.types import FinishReason, Generation, SamplingParams

_NEUTRAL: Mapping[str, Any] = {
    "n": 1,
    "logprobs": 0,
    "top_k": 0,
    "min_p": 0.0,
    "min_tokens": 0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": True,
    "detokenize": False,
}
"""`logprobs: 0` is the sampled token's own. `ignore_eos` leaves only `stop_token_ids`, which vLLM
includes in the ids; text is never made."""

_NO_LOG_PROB = -9999.0
"""What vLLM writes for NaN, minus infinity, and a token without an entry."""

_FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
}


def generate_body(
    prompt_ids: Sequence[int],
    sampling: SamplingParams,
    *,
    model: str,
    max_tokens: int,
    images: Sequence[Mapping[str, Any]] = (),
) -> bytes:
    """One turn as JSON.

    Args:
        prompt_ids: with one placeholder for each image.
        sampling: how to sample.
        model: name of it at the server.
        max_tokens: what the context leaves of `sampling.max_tokens`.
        images: as `pictures.PromptPictures.parts`.
    """
    ids = prompt_ids if isinstance(prompt_ids, list | tuple) else list(prompt_ids)
    parameters = {
        **_NEUTRAL,
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop_token_ids": sampling.stop_token_ids,
    }
    body: dict[str, Any] = {"model": model, "token_ids": ids, "sampling_params": parameters}
    if images:
        body |= {"content_parts": images, "return_token_ids": True}
    return orjson.dumps(body)


TORN = "torn"
"""Name of the weights of a server from the beginning of an update until the cache of the ones
before is empty, so that a client of the server sees it, also after the updater was killed."""


def read_version(text: str, start_version: int) -> int:
    """Our versions are decimal numbers; any other name stands for the weights of the start.

    Raises:
        EngineError: they are torn.
    """
    if text == TORN:
        raise EngineError(
            "the server's weights are torn: an update of them failed or is not over; only an "
            "update that succeeds, or a restart of the server, mends them"
        )
    return int(text) if text.isascii() and text.isdigit() else start_version


def read_generation(body: bytes, sampling: SamplingParams, *, start_version: int) -> Generation:
    """The answer to `generate_body`.

    Args:
        body: JSON with one choice.
        sampling: as it was asked for.
        start_version: the version of weights that no sync has named.

    Raises:
        EngineError: the answer is not one, or its parts do not fit together.
    """
    try:
        answer = orjson.loads(body)
        choice = answer["choices"][0]
        ids: list[int] = choice["token_ids"] or []
        # Without a token (aborted before the first one) vLLM may leave the log-probs out.
        entries: list[dict[str, Any]] = (choice["logprobs"] or {}).get("content") or []
        spans: list[dict[str, Any]] = choice["weight_versions"] or []
        reason = _FINISH.get(choice["finish_reason"])
        details = answer["usage"].get("prompt_tokens_details") or {}
        log_probs = tuple([entry["logprob"] for entry in entries])
        same = [entry["token_id"] for entry in entries] == ids
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise EngineError(
            f"a vLLM server answered something that is no generation ({error!r}): {body[:200]!r}; "
            "expected choices with token_ids, logprobs and weight_versions, as vLLM 0.30 and later"
        ) from None
    if not same:
        raise EngineError(
            f"a vLLM server answered {len(ids)} token ids with log-probs of {len(log_probs)} "
            "tokens, or of other tokens; expected one for each id"
        )
    if log_probs and not min(log_probs) > _NO_LOG_PROB:
        raise EngineError(
            "a vLLM server sampled a token without a log-probability (its logits are not finite); "
            "check the weights it was given"
        )
    if reason is FinishReason.STOP and (not ids or ids[-1] not in sampling.stop_token_ids):
        reason = None
    if reason is None:
        raise EngineError(
            f"a vLLM server ended a turn with {choice['finish_reason']!r} "
            f"({choice.get('stop_reason')!r}) after token {ids[-1:]}; expected one of "
            f"stop_token_ids {sampling.stop_token_ids}, the length or an abort"
        )
    return Generation(
        ids=tuple(ids),
        log_probs=log_probs,
        finish_reason=reason,
        policy_versions=_versions(spans, len(ids), start_version),
        cached_tokens=details.get("cached_tokens") or 0,
    )


def says_cached(body: bytes) -> bool:
    """True if an answer counts how much of its prompt was cached, also where that is nothing."""
    return bool(orjson.loads(body)["usage"].get("prompt_tokens_details"))


def _versions(
    spans: Sequence[Mapping[str, Any]], length: int, start_version: int
) -> tuple[int, ...]:
    """One version a token, from contiguous half-open spans."""
    versions: list[int] = []
    for span in spans:
        if span["start"] != len(versions):
            break
        version = read_version(span["version"], start_version)
        versions.extend([version] * (span["end"] - span["start"]))
    if len(versions) != length:
        raise EngineError(
            f"a vLLM server gave weight versions {spans} for {length} tokens; expected spans that "
            "cover each token once"
        )
    return tuple(versions)
