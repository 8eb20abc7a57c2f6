"""Turns of the policy as views of many rollouts show them, with what was answered to each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from agentrl.inspect.pages.turn_texts import turn_texts
from agentrl.inspect.read.safe_json import json_value, shown

GROUP_CHARS = 200_000
"""Shown of one text in a view that holds many."""
_WHOLE = "open the rollout itself to see them"
_RESULT_CHARS = 20_000
"""Shown there of one text that a tool or the environment gave."""


def actions_of(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Turns of the policy, each with what tools and environment answered before the next one."""
    actions: list[dict[str, Any]] = []
    for position, turn in enumerate(turns):
        if turn["role"] == "assistant":
            actions.append(
                {
                    "turn": position,
                    "text": shown(turn["text"], GROUP_CHARS, whole=_WHOLE),
                    "tool_calls": [_call(call) for call in turn["tool_calls"]],
                    "answers": [],
                }
            )
        elif actions:
            actions[-1]["answers"] += _answers(turn)
    return actions


def _answers(turn: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Results of tools, and what the environment wrote around them, each once and in order."""
    role = shown(turn["role"], 100)
    answers: list[dict[str, Any]] = []
    results = turn["tool_results"]
    for text, result in zip_longest(turn_texts(turn) if results else [turn["text"]], results):
        if text:
            own = shown(text, _RESULT_CHARS, whole=_WHOLE)
            answers.append({"role": role, "name": "", "status": "", "text": own})
        if result:
            answers.append(
                {
                    "role": role,
                    "name": shown(result["name"], 500),
                    "status": shown(result["status"], 100),
                    "text": shown(result["text"], _RESULT_CHARS, whole=_WHOLE),
                }
            )
    return answers


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": shown(call["name"], 500),
        "arguments": json_value(call["arguments"]),
        "status": shown(call["status"], 500),
        "error": shown(call["error"] or "", 500),
    }
