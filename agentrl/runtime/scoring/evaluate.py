"""Scoring a policy on named datasets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from agentrl.metrics.intervals import clipped_t_interval, score_interval
from agentrl.runtime.scores import EvalSummary, passes_of
from agentrl.runtime.stages import GroupReport
from agentrl.types.solved import is_solved


def summarise(
    name: str, step: int, groups: Sequence[GroupReport], *, n_samples: int, tasks: int = 0
) -> EvalSummary:
    """Score stored or fresh groups. Untrusted rollouts are counted and left out.

    A rollout's score is its `score`, or its reward where the environment gives no score.

    Args:
        name: of the dataset.
        step: training steps done.
        groups: one a task.
        n_samples: rollouts per task.
        tasks: of the dataset, where that is known.
    """
    scores: dict[str, list[float]] = {}
    untrusted = truncated = 0
    for group in groups:
        for rollout in group.rollouts:
            if rollout.verdict is None:
                untrusted += 1
                continue
            truncated += rollout.rule.truncated
            scores.setdefault(group.task_id, []).append(rollout.verdict)
    by_task = {task: fmean(values) for task, values in scores.items()}
    passed = {
        k: clipped_t_interval(
            [
                pass_at_k(sum(map(is_solved, values)), len(values), min(k, len(values)))
                for values in scores.values()
            ]
        )
        for k in passes_of(n_samples)
    }
    rollouts = sum(len(group.rollouts) for group in groups)
    counted = rollouts - untrusted
    return EvalSummary(
        name=name,
        step=step,
        score=score_interval(list(by_task.values())),
        passed=passed,
        k=n_samples,
        rollouts=rollouts,
        untrusted=untrusted,
        tasks=max(tasks, len({group.task_id for group in groups})),
        mean_tokens=sum(group.tokens for group in groups) / rollouts if rollouts else 0.0,
        truncated=truncated / counted if counted else 0.0,
        by_task=by_task,
    )


def pass_at_k(passed: int, n: int, k: int) -> float:
    """Chance that at least one of `k` draws passes, unbiased from `n` samples.

    1 - C(n-c, k) / C(n, k), https://arxiv.org/abs/2107.03374 equation 1.

    Example:
        >>> pass_at_k(1, 4, 2)
        0.5
    """
    if not 0 <= passed <= n or not 1 <= k <= n:
        raise ValueError(f"pass_at_k: impossible counts: passed {passed} of {n}, k {k}")
    return 1.0 - math.comb(n - passed, k) / math.comb(n, k)
