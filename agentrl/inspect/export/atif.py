"""A rollout in the Agent Trajectory Interchange Format, version 1.7, which Harbor defines.

https://github.com/harbor-framework/harbor/blob/main/rfcs/0001-trajectory-format.md

The prompt is one `user` step (a chat template has already turned it into text), every assistant
turn one `agent` step with its calls, token ids and log-probabilities, and what came back for the
calls is the observation of that step, as the format wants it. What an environment said to the
model without being called becomes a `user` step; what is neither goes into `extra`: reward, its
parts, advantage, termination, weight versions. A rollout of several rows, each with a prompt of
its own, becomes one document whose later prompts are steps marked as copied context.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.data import StoredTrajectory
from agentrl.inspect.pages.images import numbered
from agentrl.types import ToolCall, ToolResult, Trajectory, Turn

ATIF_VERSION = "ATIF-v1.7"
_SURROGATE = re.compile("[\ud800-\udfff]")


def atif_document(
    rows: Sequence[StoredTrajectory], *, run: str = "", model: str = "", version: str = ""
) -> dict[str, Any]:
    """One document, ready for `json.dumps`.

    Args:
        rows: of one rollout, in order.
        run: name of the run, which becomes part of the session's id.
        model: what is named as the agent's model.
        version: of the agentrl that recorded the run.
    """
    first, last = rows[0], rows[-1].trajectory
    steps: list[dict[str, Any]] = []
    for stored in rows:
        _add_row(steps, stored.trajectory)
    sampled = sum(stored.trajectory.num_action_tokens for stored in rows)
    agent: dict[str, Any] = {"name": "agentrl", "version": _text(version) or "unknown"}
    if model:
        agent["model_name"] = _text(model)
    session = "/".join(part for part in (run, first.kind, str(first.step)) if part)
    return {
        "schema_version": ATIF_VERSION,
        "session_id": _text(f"{session}/{last.rollout_id}"),
        "trajectory_id": _text(last.rollout_id),
        "agent": agent,
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": sum(_prompt_tokens(stored.trajectory) for stored in rows),
            "total_completion_tokens": sampled,
            "total_steps": len(steps),
        },
        "extra": _clean(
            {
                "run": run,
                "kind": first.kind,
                "step": first.step,
                "split": last.split,
                "task_id": last.task_id,
                "group_id": last.group_id,
                "rollout_id": last.rollout_id,
                "reward": last.reward,
                "reward_parts": dict(last.reward_parts),
                "score": last.score,
                "advantage": first.advantage,
                "termination": last.termination.value,
                "termination_detail": last.termination_detail,
                "extra_logs": {**last.extra_logs, **last.usage},
                "explanation": last.explanation and dataclasses.asdict(last.explanation),
                "requests": [dataclasses.asdict(one) for one in first.trajectory.requests],
                "temperature": last.temperature,
                "duration_s": last.duration_s,
            }
        ),
    }


def _add_row(steps: list[dict[str, Any]], trajectory: Trajectory) -> None:
    prompt: dict[str, Any] = {"source": "user", "message": _text(_shown(trajectory))}
    prompt["extra"] = {"chat_template_applied": True, "row_index": trajectory.row_index}
    if steps:
        prompt["is_copied_context"] = True
    _add(steps, prompt)
    calls: dict[str, dict[str, Any]] = {}
    agent: dict[str, Any] | None = None
    for index, turn in enumerate(trajectory.turns):
        if turn.role == "assistant":
            agent, calls = _add(steps, _agent_step(trajectory, turn, index)), {}
            names: set[str] = set()
            for call in turn.tool_calls:
                record = _call(call, names)
                agent.setdefault("tool_calls", []).append(record)
                calls.setdefault(call.id, record)
        elif agent is not None and turn.tool_results:
            results = agent.setdefault("observation", {"results": []})["results"]
            results += [_result(result, calls) for result in turn.tool_results]
            agent["extra"].setdefault("observation_turns", []).append(_span(turn, index))
            if not _only_results(turn):
                _add(steps, _said(turn, index))
        else:
            _add(steps, _said(turn, index))


def _shown(trajectory: Trajectory) -> str:
    """The prompt with its images in words; other texts have them as they are stored."""
    images = [dataclasses.asdict(span) for span in trajectory.images]
    own = [image for image in images if image["start"] < len(trajectory.prompt_ids)]
    return numbered(trajectory.prompt_text, own)


def _add(steps: list[dict[str, Any]], step: dict[str, Any]) -> dict[str, Any]:
    steps.append({"step_id": len(steps) + 1, **step})
    return steps[-1]


def _agent_step(trajectory: Trajectory, turn: Turn, index: int) -> dict[str, Any]:
    ids = list(trajectory.response_ids[turn.start : turn.end])
    log_probs = [_number(value) for value in trajectory.rollout_log_probs[turn.start : turn.end]]
    metrics: dict[str, Any] = {
        "prompt_tokens": len(trajectory.prompt_ids) + turn.start,
        "completion_tokens": len(ids),
        "prompt_token_ids": [*trajectory.prompt_ids, *trajectory.response_ids[: turn.start]],
        "completion_token_ids": ids,
    }
    # The format knows numbers only; a list with a hole in it would say something else.
    if all(value is not None for value in log_probs):
        metrics["logprobs"] = log_probs
    versions = sorted(set(trajectory.policy_versions[turn.start : turn.end]))
    extra = {**_span(turn, index), "policy_versions": versions, "reward": turn.reward}
    if turn.finish_reason is not None:
        extra["finish_reason"] = turn.finish_reason.value
    return {
        "source": "agent",
        "message": _text(turn.text),
        "metrics": metrics,
        "llm_call_count": 1,
        "extra": _clean(extra),
    }


def _call(call: ToolCall, names: set[str]) -> dict[str, Any]:
    identity, number = _text(call.id) or "call", 2
    while identity in names:
        identity, number = f"{_text(call.id) or 'call'}-{number}", number + 1
    names.add(identity)
    extra = {"status": call.status.value, "raw": call.raw, "error": call.error}
    return {
        "tool_call_id": identity,
        "function_name": _text(call.name),
        "arguments": _clean(dict(call.arguments)),
        "extra": _clean(extra),
    }


def _result(result: ToolResult, calls: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    record: dict[str, Any] = {"content": _text(result.text)}
    # A reference must name a call of the same step.
    if result.call_id in calls:
        record["source_call_id"] = calls[result.call_id]["tool_call_id"]
    record["extra"] = _clean(
        {
            "name": result.name,
            "status": result.status.value,
            "duration_s": result.duration_s,
            "truncated": result.truncated,
            "data": result.data,
        }
    )
    return record


def _said(turn: Turn, index: int) -> dict[str, Any]:
    source = "system" if turn.role == "system" else "user"
    extra = {**_span(turn, index), "role": turn.role}
    return {"source": source, "message": _text(turn.text), "extra": _clean(extra)}


def _only_results(turn: Turn) -> bool:
    """Whether the results hold all that the turn put before the model."""
    rest = turn.text
    for result in turn.tool_results:
        rest = rest.replace(result.text, "", 1)
    return not rest.strip()


def _span(turn: Turn, index: int) -> dict[str, Any]:
    return {
        "turn": index,
        "start": turn.start,
        "end": turn.end,
        "duration_s": _number(turn.duration_s),
    }


def _prompt_tokens(trajectory: Trajectory) -> int:
    spans = [turn for turn in trajectory.turns if turn.role == "assistant"]
    return sum(len(trajectory.prompt_ids) + turn.start for turn in spans)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _text(text: str) -> str:
    """Text that any JSON reader takes: lone surrogates become U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        return {_text(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value
