"""Random groups with everything that a decision about a step can depend on."""

from __future__ import annotations

import random

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

ENDS = (
    Termination.ENV_DONE,
    Termination.ENV_DONE,
    Termination.MAX_TOKENS,
    Termination.SANDBOX_FAILED,
    Termination.ABORTED,
    Termination.TOOL_TIMEOUT,
)


def random_groups(
    seed: int, *, sizes: tuple[int, ...] = (4, 3, 1, 5, 4, 4), vocabulary: int = 61
) -> list[TrajectoryGroup]:
    """Rollouts of one to three rows, with turns, tools, failures and several versions."""
    rng = random.Random(seed)
    groups = []
    for number, size in enumerate(sizes):
        name = f"s{seed}/g{number}"
        prompt = _ids(rng, rng.randint(1, 6), vocabulary)
        flat = rng.random() < 0.3
        rows = [
            row
            for index in range(size)
            for row in _rollout(rng, name, index, prompt, vocabulary, flat=flat)
        ]
        groups.append(TrajectoryGroup(group_id=name, task_id=name, trajectories=tuple(rows)))
    return groups


def _rollout(
    rng: random.Random,
    group: str,
    index: int,
    prompt: tuple[int, ...],
    vocabulary: int,
    *,
    flat: bool,
) -> list[Trajectory]:
    end = rng.choice(ENDS)
    trusted = end in (Termination.ENV_DONE, Termination.MAX_TOKENS, Termination.TOOL_TIMEOUT)
    reward = 1.0 if flat else rng.choice([0.0, 0.25, 1.0, 3.5])
    number = rng.choice([1, 1, 1, 2, 3])
    rows = []
    for row_index in range(number):
        turns, mask = _turns(rng)
        versions = [rng.randint(1, 3) if bit else -1 for bit in mask]
        rows.append(
            Trajectory(
                task_id=group,
                group_id=group,
                rollout_id=f"{group}/{index}",
                row_index=row_index,
                prompt_ids=prompt + _ids(rng, 2 * row_index, vocabulary),
                response_ids=_ids(rng, len(mask), vocabulary),
                response_mask=tuple(mask),
                rollout_log_probs=tuple(-rng.uniform(0.1, 5.0) if bit else 0.0 for bit in mask),
                policy_versions=tuple(versions),
                prompt_text="a prompt",
                turns=tuple(turns),
                reward=reward if trusted else None,
                score=rng.choice([None, 0.0, 1.0]) if trusted else None,
                reward_parts={"a": 0.5} if trusted else {},
                termination=end,
                termination_detail="in words",
                extra_logs={"moves@sum": 2.0},
                usage={"retried/sandbox_failed": 1.0, "lost/tokens": 3.0} if index == 1 else {},
                duration_s=rng.uniform(1.0, 2.0),
            )
        )
    return rows


def _turns(rng: random.Random) -> tuple[list[Turn], list[int]]:
    turns: list[Turn] = []
    mask: list[int] = []
    for _ in range(rng.randint(1, 3)):
        said, seen = rng.randint(1, 4), rng.randint(0, 3)
        status = rng.choice(list(CallStatus))
        call = ToolCall(id="c", name="f", arguments={"x": 1}, raw="f(1)", status=status)
        result = ToolResult(
            text="long", status=rng.choice(list(ToolStatus)), name="f", duration_s=0.5, data={}
        )
        turns.append(
            Turn(
                role="assistant",
                start=len(mask),
                end=len(mask) + said,
                text="said",
                tool_calls=(call,),
                reward=rng.choice([None, 0.5, 1.0]),
                finish_reason=rng.choice(list(FinishReason)),
            )
        )
        mask += [1] * said
        turns.append(
            Turn(
                role="tool",
                start=len(mask),
                end=len(mask) + seen,
                text="seen",
                tool_results=(result,),
            )
        )
        mask += [0] * seen
    return turns, mask


def _ids(rng: random.Random, count: int, vocabulary: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, vocabulary) for _ in range(count))
