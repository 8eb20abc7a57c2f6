"""Demands of a request on its answer: honoured, or refused by name.

The answer is a sample of the policy, one, and as it samples: nothing forces its form, and only the
log-probabilities of what was sampled are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.gateway.records import TurnAnswer
from agentrl.gateway.wires.fields import object_in, wrong

_LEAST_LOG_PROB = -9999.0
"""Stands for all below it; JSON has no infinity."""


def one_answer(body: Mapping[str, Any]) -> None:
    """Refuse more than one answer to a request."""
    if body.get("n") not in (None, 1):
        raise wrong("n", body["n"], "1: a request gets one answer here")


def free_form(value: Any, field: str) -> None:
    """Refuse a form of the answer that the policy would have to be held to.

    Args:
        value: the form that is asked for; None for any.
        field: its name.

    Raises:
        RequestRefused: it is another one than text.
    """
    if value is None:
        return
    kind = object_in(value, field).get("type")
    if kind != "text":
        raise wrong(
            f"{field}.type",
            kind,
            "'text': an answer is what the policy samples, and nothing holds it to a form; ask for "
            "the form in the prompt, or offer a tool with these fields",
        )


def no_others(body: Mapping[str, Any]) -> None:
    """Refuse log-probabilities of tokens that were not sampled."""
    if body.get("top_logprobs") not in (None, 0):
        raise wrong(
            "top_logprobs",
            body["top_logprobs"],
            "0: the log-probabilities of sampled tokens alone are known; leave it out",
        )


def written_log_probs(answer: TurnAnswer) -> list[dict[str, Any]]:
    """The log-probability of each sampled token, calls and thought included, as OpenAI writes it.

    Text that is a part of a character has no bytes of its own.
    """
    return [
        {
            "token": text,
            "bytes": None if "\ufffd" in text else list(text.encode(errors="surrogatepass")),
            "logprob": max(log_prob, _LEAST_LOG_PROB),
            "top_logprobs": [],
        }
        for text, log_prob in answer.log_probs
    ]
