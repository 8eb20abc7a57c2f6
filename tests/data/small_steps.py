"""A step as the quickstart makes them: 64 rollouts of one or two turns, about 3000 tokens."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np

from agentrl.types import (
    FinishReason,
    Termination,
    ToolCall,
    TrainedTokens,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

TASKS = {
    "limit": ("that returns n, but at least 0 and at most 100", "return max(0, min(100, n))"),
    "count_odd": ("that counts the odd numbers", "return sum(1 for x in xs if x % 2 == 1)"),
    "second": ("that returns the second largest number", "return sorted(xs)[-2]"),
    "joined": ("that joins the words with dashes", 'return "-".join(words)'),
    "is_prime": (
        "that says whether n is a prime",
        "if n < 2:\n        return False\n"
        "    for d in range(2, int(n ** 0.5) + 1):\n        if n % d == 0:\n"
        "            return False\n    return True",
    ),
    "vowels": (
        "that counts the vowels of a text",
        'return sum(c in "aeiou" for c in text.lower())',
    ),
    "flat": ("that flattens a list of lists", "return [x for row in rows for x in row]"),
    "runs": (
        "that returns the length of the longest run of equal items",
        "best = run = 1\n    for a, b in zip(xs, xs[1:]):\n"
        "        run = run + 1 if a == b else 1\n        best = max(best, run)\n    return best",
    ),
}
SOLVED = (0.0, 0.3, 1.0, 0.7, 0.2, 0.0, 0.5, 0.6)
"""Share of the rollouts of each task; where it is 0 or 1 there is nothing to train."""
MISTAKES = (("max", "min"), ("return", "print"), ("xs", "numbers"), ("1", "0"), ("==", "!="))
_PIECE = re.compile(r" ?\w+\(?|\s+|[^\w\s]+")
_SYSTEM = "<|im_start|>system\nReply with one short Python function and nothing else.<|im_end|>\n"
TICK_S = 2.0**-14


def ids_of(text: str) -> list[int]:
    """Ids of a vocabulary of 49152, one for each word, run of spaces or sign."""
    return [zlib.crc32(piece.encode()) % 49152 for piece in _PIECE.findall(text)]


def small_step(
    step: int, seed: int = 0
) -> tuple[list[TrajectoryGroup], dict[str, float], list[TrainedTokens]]:
    """Groups, advantages by rollout, and what a trainer makes of those that have one."""
    rng = np.random.default_rng([seed, step])
    groups, advantages = [], {}
    for number, (name, (wish, body)) in enumerate(TASKS.items()):
        group_id = f"step-{step}/{number:04d}-{name}-{seed}-{number}"
        solved = rng.random(8) < SOLVED[number]
        rows = [
            _rollout(rng, name, wish, body, group_id, index, step, bool(solved[index]))
            for index in range(8)
        ]
        for row in rows:
            advantages[row.rollout_id] = float(row.reward or 0.0) - float(solved.mean())
        groups.append(
            TrajectoryGroup(group_id=group_id, task_id=rows[0].task_id, trajectories=tuple(rows))
        )
    rows = [row for group in groups for row in group.trajectories]
    total = sum(row.num_action_tokens for row in rows)
    trained = [
        _trained(rng, row, advantages[row.rollout_id], total)
        for row in rows
        if advantages[row.rollout_id]
    ]
    return groups, advantages, trained


def response_tokens(groups: Sequence[TrajectoryGroup]) -> int:
    """Sampled ones and those that the environment put between them."""
    return sum(len(row.response_ids) for group in groups for row in group.trajectories)


def _rollout(
    rng: np.random.Generator,
    name: str,
    wish: str,
    body: str,
    group_id: str,
    index: int,
    step: int,
    solved: bool,
) -> Trajectory:
    argument = re.findall(r"\b(n|xs|words|text|rows)\b", body)[0]
    prompt = (
        f"{_SYSTEM}<|im_start|>user\nWrite a Python function `{name}({argument})` {wish}.\n"
        f"Example: {name}({index}) == {len(body)}<|im_end|>\n<|im_start|>assistant\n```python\n"
    )
    texts = [_answer(rng, name, argument, body)]
    if rng.random() < 0.4:
        given, got = rng.integers(0, 99, 2)
        texts.append(
            f"{name}({given}) returned {got}, expected {given + 1}. "
            f"Write the whole function {name} again."
        )
        texts.append(_answer(rng, name, argument, body))
    ids: list[int] = []
    mask: list[int] = []
    turns: list[Turn] = []
    for number, text in enumerate(texts):
        sampled, start = number % 2 == 0, len(ids)
        frame = text if sampled else f"<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n```python\n"
        ids += ids_of(frame)
        mask += [int(sampled)] * (len(ids) - start)
        call = ToolCall(
            id=f"call_{number // 2}",
            name="python",
            arguments={"code": text.removesuffix("```"), "language": "python"},
            raw=f"```python\n{text}",
            span=(start, len(ids)),
        )
        turns.append(
            Turn(
                role="assistant" if sampled else "user",
                start=start,
                end=len(ids),
                text=text,
                tool_calls=(call,) if sampled else (),
                finish_reason=FinishReason.STOP if sampled else None,
                duration_s=_seconds(rng, 3.0),
            )
        )
    reward = float(solved)
    return Trajectory(
        task_id=group_id.partition("-")[2],
        group_id=group_id,
        rollout_id=f"{group_id}/{index}",
        prompt_ids=tuple(ids_of(prompt)),
        prompt_text=prompt,
        response_ids=tuple(ids),
        response_mask=tuple(mask),
        rollout_log_probs=tuple(_log_probs(rng, mask)),
        policy_versions=tuple(step - 1 if bit else -1 for bit in mask),
        turns=tuple(turns),
        reward=reward,
        reward_parts={"tests": reward},
        score=reward,
        termination=Termination.ENV_DONE,
        extra_logs={
            "solved": reward,
            "public_passed": float(rng.integers(0, 3)) / 2,
            "hidden_passed": float(rng.integers(0, 9)) / 8,
            "parsed": 1.0,
            "timed_out": 0.0,
            "tries": float(len(turns) // 2 + 1),
        },
        usage={
            "sandbox/opened": 1.0,
            "sandbox/warm": 1.0,
            "sandbox/outcome/ok": 1.0,
            "sandbox/wait_s": _seconds(rng, 0.001),
            "sandbox/start_s": _seconds(rng, 0.02),
        },
        split="train",
        duration_s=_seconds(rng, 9.0),
    )


def _answer(rng: np.random.Generator, name: str, argument: str, body: str) -> str:
    for old, new in MISTAKES:
        if rng.random() < 0.2:
            body = body.replace(old, new)
    more = ("", "", "\n    # done", f"\n\nprint({name}({rng.integers(0, 9)}))")
    return f"def {name}({argument}):\n    {body}{more[rng.integers(0, 4)]}\n```"


def _seconds(rng: np.random.Generator, mean: float) -> float:
    """As a rollout measures them."""
    return round(float(rng.gamma(3.0, mean / 3)) / TICK_S) * TICK_S


def _log_probs(rng: np.random.Generator, mask: Sequence[int]) -> list[float]:
    """Most tokens of a trained policy are all but certain, and some are a choice.

    The former are the logarithm of a sum that is next to 1, of which float32 knows 2**-23.
    """
    n = len(mask)
    sure = -np.log(np.float32(1) + (10.0 ** rng.uniform(-10, -1.5, n)).astype(np.float32))
    values = np.where(rng.random(n) < 0.92, sure, -rng.gamma(1.1, 0.8, n))
    return np.where(np.asarray(mask) == 1, values, 0.0).astype(np.float32).tolist()


def _trained(
    rng: np.random.Generator, row: Trajectory, advantage: float, total: int
) -> TrainedTokens:
    """Numbers of a trainer that computes in bfloat16, so its log-probabilities are others."""
    n = max(index for index, bit in enumerate(row.response_mask) if bit) + 1
    mask = np.asarray(row.response_mask[:n]) == 1
    sampled = np.asarray(row.rollout_log_probs[:n])

    def where_trained(values: np.ndarray) -> list[float]:
        return np.where(mask, values, 0.0).astype(np.float32).tolist()

    own = sampled * (1 + rng.normal(0, 0.02, n))
    ratio = np.exp(own - sampled)
    return TrainedTokens(
        group_id=row.group_id,
        rollout_id=row.rollout_id,
        row_index=0,
        updates=1,
        trained=mask.tolist(),
        old_log_probs=where_trained(own),
        log_probs=where_trained(own),
        entropy=where_trained(np.abs(sampled) * rng.uniform(0.5, 2.0, n) + 1e-4),
        advantages=where_trained(np.full(n, advantage)),
        correction=where_trained(np.ones(n)),
        clip=[0] * n,
        loss=where_trained(-advantage * ratio / total),
    )
