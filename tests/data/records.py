"""Trajectories for the tests of this folder: one by hand, and any at all by hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from agentrl.types import (
    CallStatus,
    FinishReason,
    Termination,
    ToolCall,
    ToolResult,
    ToolStatus,
    Trajectory,
    TrajectoryGroup,
    Turn,
)


def trajectory(**values: Any) -> Trajectory:
    """A two-turn rollout with a tool call; `values` replace its fields."""
    call = ToolCall(id="c1", name="add", arguments={"a": 1}, raw="add(1)", span=(0, 2))
    result = ToolResult(text="1", call_id="c1", name="add", duration_s=0.5)
    fields: dict[str, Any] = {
        "task_id": "t0",
        "group_id": "1-t0",
        "rollout_id": "1-t0-0",
        "prompt_ids": (1, 2, 3),
        "prompt_text": "add 1",
        "response_ids": (10, 11, 12, 13),
        "response_mask": (1, 1, 0, 1),
        "rollout_log_probs": (-0.5, -0.25, 0.0, -0.125),
        "policy_versions": (3, 3, -1, 4),
        "turns": (
            Turn(role="assistant", start=0, end=2, text="add(1)", tool_calls=(call,), reward=0.0),
            Turn(role="tool", start=2, end=3, text="1", tool_results=(result,)),
            Turn(
                role="assistant",
                start=3,
                end=4,
                text="done",
                reward=1.0,
                finish_reason=FinishReason.STOP,
            ),
        ),
        "reward": 1.0,
        "reward_parts": {"tests": 1.0},
        "score": 1.0,
        "termination": Termination.ENV_DONE,
        "extra_logs": {"depth": 2.0},
    }
    return Trajectory(**{**fields, **values})


def group(*trajectories: Trajectory) -> TrajectoryGroup:
    """Trajectories of one group."""
    first = trajectories[0]
    return TrajectoryGroup(
        group_id=first.group_id, task_id=first.task_id, trajectories=trajectories
    )


# Any text, lone surrogates and NULs included, and the mark that escapes them.
texts = st.text(
    st.characters(exclude_categories=())
    | st.sampled_from(["\x00", "\ud800", "\udfff", "\U0010ffff", "\x1b"]),
    max_size=8,
)
numbers = st.floats(allow_nan=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
counts = st.integers(0, 2**31 - 1)
calls = st.builds(
    ToolCall,
    id=texts,
    name=texts,
    arguments=st.dictionaries(texts, json_values, max_size=3),
    raw=texts,
    status=st.sampled_from(CallStatus),
    error=texts,
    span=st.tuples(counts, counts),
)
results = st.builds(
    ToolResult,
    text=texts,
    status=st.sampled_from(ToolStatus),
    call_id=texts,
    name=texts,
    duration_s=numbers,
    truncated=st.booleans(),
    data=json_values,
)
turns = st.builds(
    Turn,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    start=counts,
    end=counts,
    text=texts,
    tool_calls=st.lists(calls, max_size=2).map(tuple),
    tool_results=st.lists(results, max_size=2).map(tuple),
    reward=st.none() | numbers,
    finish_reason=st.none() | st.sampled_from(FinishReason),
    duration_s=numbers,
)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    """Any trajectory of group `g` whose log-probabilities are float32."""
    length = draw(st.integers(0, 5))

    def tokens(of: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(st.lists(of, min_size=length, max_size=length)))

    return Trajectory(
        task_id=draw(texts),
        group_id="g",
        rollout_id=draw(texts),
        row_index=draw(counts),
        prompt_ids=tuple(draw(st.lists(counts, max_size=4))),
        response_ids=tokens(counts),
        response_mask=tokens(st.integers(0, 1)),
        rollout_log_probs=tokens(st.floats(width=32, allow_nan=False)),
        policy_versions=tokens(st.integers(-1, 2**31 - 1)),
        prompt_text=draw(texts),
        turns=tuple(draw(st.lists(turns, max_size=2))),
        reward=draw(st.none() | numbers),
        reward_parts=draw(st.dictionaries(texts, numbers, max_size=2)),
        score=draw(st.none() | numbers),
        termination=draw(st.sampled_from(Termination)),
        termination_detail=draw(texts),
        extra_logs=draw(st.dictionaries(texts, numbers, max_size=2)),
        split=draw(texts),
        temperature=draw(numbers),
        duration_s=draw(numbers),
    )
