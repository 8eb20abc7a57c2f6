"""Updates as large as those of a run, on drawn log-probabilities instead of a model.

A fault may act only in a micro-batch above some size, with many rows, or in a long rollout. So one
set has many short rollouts, whose micro-batches range from 128 tokens to the run's own, and one has
few long ones, up to the run's longest.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from agentrl.train.prove.bench import WHOLE, Bench, top_k_of
from agentrl.train.prove.compare import ProofFinding, compared, failed, not_finite
from agentrl.train.prove.direction import direction_check
from agentrl.train.prove.evaluate import Division, UpdateOutcome
from agentrl.train.prove.model import VOCABULARY
from agentrl.train.prove.policies import table_policies
from agentrl.train.prove.rollouts import OLDEST_VERSION, split_rollouts
from agentrl.types import Termination, Trajectory, TrajectoryGroup, Turn
from agentrl.types.finding import Status

LARGEST = 32768
"""Tokens of the largest micro-batch and of twice the longest rollout; more takes long."""
_SMALLEST = 128
_STEP = 8
"""Factor between two budgets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSizes:
    """Sizes of a run that a loss has to be right at."""

    micro_batch_tokens: int = 4096
    """`train.micro_batch_tokens`. At least 1024 are tried, at most `LARGEST`."""
    response_tokens: int = 2048
    """`rollout.max_response_tokens`. At least 1024 are tried, at most half of `LARGEST`."""

    @property
    def budget(self) -> int:
        """Tokens of the largest micro-batch. Twice the run's, as only some tokens are trained."""
        return 2 * min(max(self.micro_batch_tokens, 1024), LARGEST)

    @property
    def update(self) -> int:
        """Tokens of the update of many rollouts. In one micro-batch a local mean is the global
        one, so there are several of the largest budget."""
        return 2 * self.budget

    @property
    def longest(self) -> int:
        """Tokens of the longest rollout."""
        return min(max(self.response_tokens, 1024), LARGEST // 2)


def size_checks(
    small: Bench, sizes: ProbeSizes, *, seed: int
) -> Iterator[tuple[str, Callable[[], ProofFinding]]]:
    """Name and way to make each check at the sizes of a run.

    Args:
        small: algorithm and needs are taken over.
        sizes: of the run.
        seed: of the rollouts.
    """
    many = _bench(small, many_rollouts(sizes.update, seed=seed), seed=seed)
    title = f"micro-batches to {sizes.budget} tokens"
    yield (
        title,
        lambda: _same_under(title, many, _whole(many), _budgets(sizes.budget), many.groups),
    )
    name = f"direction, {sizes.update} tokens"
    yield name, lambda: direction_check(many, name)
    long = _bench(small, long_rollouts(sizes.longest, seed=seed), seed=seed + 1)
    last = f"rollouts of {sizes.longest} tokens"
    whole = cache(lambda: _whole(long))
    yield last, lambda: _same_under(last, long, whole(), _long_divisions(long), long.groups)
    if not small.needs.whole_rollouts:
        parts = f"rollouts of {sizes.longest} tokens, split"
        split = split_rollouts(long.groups)
        yield parts, lambda: _same_under(parts, long, whole(), _long_divisions(long), split)
    long_name = f"direction, rollouts of {sizes.longest} tokens"
    yield long_name, lambda: direction_check(long, long_name)


def _bench(small: Bench, groups: list[TrajectoryGroup], *, seed: int) -> Bench:
    return Bench(
        policies=table_policies(groups, seed=seed, top_k=top_k_of(small.algorithm)),
        algorithm=small.algorithm,
        needs=small.needs,
        clip_shaped=small.clip_shaped,
        groups=groups,
    )


def _budgets(largest: int) -> list[Division]:
    budgets = [_SMALLEST]
    while budgets[-1] * _STEP < largest:
        budgets.append(budgets[-1] * _STEP)
    budgets.append(largest)
    divisions = [Division(name=f"{size} tokens", micro_batch_tokens=size) for size in budgets]
    return [
        *divisions,
        Division(name=f"{budgets[-2]} tokens, 8 ranks", micro_batch_tokens=budgets[-2], ranks=8),
    ]


def _long_divisions(bench: Bench) -> list[Division]:
    rows = [row for group in bench.groups for row in group.trajectories]
    longest = max(len(row.prompt_ids) + len(row.response_ids) for row in rows)
    return [Division(name=f"{longest} tokens", micro_batch_tokens=longest)]


def _whole(bench: Bench) -> UpdateOutcome:
    return bench.outcome(bench.update(WHOLE))


def _same_under(
    title: str,
    bench: Bench,
    whole: UpdateOutcome,
    divisions: list[Division],
    groups: list[TrajectoryGroup],
) -> ProofFinding:
    """The largest difference to the update in one micro-batch, over all divisions."""
    bad = not_finite(whole)
    if bad:
        return failed(title, bad)
    worst: ProofFinding | None = None
    for division in divisions:
        other = bench.outcome(bench.update(division, groups), ranks=division.ranks)
        found = compared(title, whole, other, against=f"in micro-batches of {division.name}")
        if found.status is Status.FAIL:
            return found
        if worst is None or (found.error or 0.0) > (worst.error or 0.0):
            worst = found
    assert worst is not None
    return worst


def many_rollouts(tokens: int, *, seed: int) -> list[TrajectoryGroup]:
    """Groups of 2 to 32 rollouts with 1 to 64 sampled tokens, `tokens` tokens in all."""
    rng = random.Random(seed)
    groups: list[TrajectoryGroup] = []
    left = tokens
    while left > 0:
        name = f"many{len(groups)}"
        rows = [
            _rollout(rng, group=name, index=index, sampled=2 ** rng.randint(0, 6))
            for index in range(2 ** rng.randint(1, 5))
        ]
        left -= sum(len(row.prompt_ids) + len(row.response_ids) for row in rows)
        groups.append(TrajectoryGroup(group_id=name, task_id=name, trajectories=tuple(rows)))
    return groups


def long_rollouts(tokens: int, *, seed: int) -> list[TrajectoryGroup]:
    """One group: a rollout of `tokens` sampled tokens, one of half as many, and so on to 64."""
    rng = random.Random(seed)
    lengths = [tokens >> halved for halved in range(tokens.bit_length()) if tokens >> halved >= 64]
    rows = tuple(
        _rollout(rng, group="long", index=index, sampled=length)
        for index, length in enumerate(lengths)
    )
    return [TrajectoryGroup(group_id="long", task_id="long", trajectories=rows)]


def _rollout(rng: random.Random, *, group: str, index: int, sampled: int) -> Trajectory:
    """Turns of at most a quarter of the tokens, some of them of older weights."""
    mask: list[int] = []
    versions: list[int] = []
    spans: list[Turn] = []
    left = sampled
    while left > 0:
        own = min(left, max(1, sampled // 4))
        left -= own
        start, seen = len(mask), rng.randint(0, 2) + own // 8
        mask += [1] * own + [0] * seen
        stale = own > 1 and rng.random() < 0.1
        versions += [OLDEST_VERSION - stale] + [OLDEST_VERSION] * (own - 1) + [-1] * seen
        spans.append(
            Turn(role="assistant", start=start, end=start + own, text="", reward=rng.random())
        )
        if seen:
            spans.append(Turn(role="tool", start=start + own, end=len(mask), text=""))
    return Trajectory(
        task_id=group,
        group_id=group,
        rollout_id=f"{group}/{index}",
        prompt_ids=tuple(rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, 4))),
        response_ids=tuple(rng.randrange(3, VOCABULARY) for _ in mask),
        response_mask=tuple(mask),
        rollout_log_probs=tuple(-rng.random() * 4.0 if own else 0.0 for own in mask),
        policy_versions=tuple(versions),
        turns=tuple(spans),
        reward=rng.random(),
        termination=Termination.ENV_DONE,
    )
