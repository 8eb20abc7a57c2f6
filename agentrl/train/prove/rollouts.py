"""Random rollouts with everything that has broken a trainer before.

Uneven groups and a singleton, a group whose rewards are all equal, one-token responses, turns with
environment spans between and after them, tokens of older weights, and a rollout that failed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch

from agentrl.train.prove.model import VOCABULARY
from agentrl.types import Termination, Trajectory, TrajectoryGroup, Turn

OLDEST_VERSION = 1
"""Tokens of version 0 are stale."""
_SIZES = (6, 3, 1, 5)
_REWARDS = (0.0, 0.25, 1.0)


def random_groups(model: torch.nn.Module, *, seed: int) -> list[TrajectoryGroup]:
    """Make uneven random groups of rollouts.

    Args:
        model: whose log-probabilities the sampler's differ from by some noise.
        seed: decides everything.
    """
    rng = random.Random(seed)
    groups = []
    for number, size in enumerate(_SIZES):
        name = f"g{number}"
        prompt = tuple(rng.randrange(3, VOCABULARY) for _ in range(rng.randint(2, 9)))
        # Siblings may begin alike: that is what prefix sharing is about.
        opening = tuple(rng.randrange(3, VOCABULARY) for _ in range(3))
        rows = [
            _rollout(
                rng,
                group=name,
                index=index,
                prompt=prompt,
                opening=opening if index % 2 else (),
                turns=0 if index == 1 else 1 + index % 3,
                equal=number == 1,
            )
            for index in range(size)
        ]
        if number == 0:
            rows.append(
                replace(
                    rows[-1],
                    rollout_id=f"{name}/failed",
                    reward=None,
                    termination=Termination.SANDBOX_FAILED,
                )
            )
        groups.append(
            TrajectoryGroup(
                group_id=name,
                task_id=name,
                trajectories=tuple(_with_log_probs(model, row, rng) for row in rows),
            )
        )
    return groups


def _rollout(
    rng: random.Random,
    *,
    group: str,
    index: int,
    prompt: tuple[int, ...],
    opening: tuple[int, ...],
    turns: int,
    equal: bool,
) -> Trajectory:
    """`turns` turns, each sampled and answered; without any, a single token."""
    ids: list[int] = []
    mask: list[int] = []
    versions: list[int] = []
    spans: list[Turn] = []
    for number in range(max(turns, 1)):
        sampled = rng.randint(2, 6) if turns else 1
        own = [rng.randrange(3, VOCABULARY) for _ in range(sampled)]
        own[: len(opening)] = opening[:sampled] if number == 0 and turns else own[: len(opening)]
        seen = rng.randint(1, 3) if turns and (number < turns - 1 or rng.random() < 0.5) else 0
        start = len(ids)
        ids += own + [rng.randrange(3, VOCABULARY) for _ in range(seen)]
        mask += [1] * sampled + [0] * seen
        # Some turns began, or were sampled as a whole, before the weights that are still trained.
        stale = int(sampled > 1 and rng.random() < 0.3)
        stale = sampled if index == 2 and number == turns - 1 else stale
        versions += [0] * stale + [OLDEST_VERSION] * (sampled - stale) + [-1] * seen
        spans.append(
            Turn(role="assistant", start=start, end=start + sampled, text="", reward=rng.random())
        )
        if seen:
            spans.append(Turn(role="tool", start=start + sampled, end=len(ids), text=""))
    return Trajectory(
        task_id=group,
        group_id=group,
        rollout_id=f"{group}/{index}",
        prompt_ids=prompt,
        response_ids=tuple(ids),
        response_mask=tuple(mask),
        rollout_log_probs=(0.0,) * len(ids),
        policy_versions=tuple(versions),
        turns=tuple(spans),
        reward=0.5 if equal else rng.choice(_REWARDS) + 0.125 * index,
        termination=Termination.ENV_DONE,
    )


@torch.no_grad()
def _with_log_probs(model: torch.nn.Module, row: Trajectory, rng: random.Random) -> Trajectory:
    """The model's own by the library's plain forward pass, with noise as of another program."""
    logits = model(torch.tensor([row.prompt_ids + row.response_ids])).logits[0]
    log_probs = torch.log_softmax(logits[len(row.prompt_ids) - 1 : -1], -1)
    chosen = log_probs[range(len(row.response_ids)), list(row.response_ids)].tolist()
    return replace(
        row,
        rollout_log_probs=tuple(
            value + rng.uniform(-0.6, 0.6) if sampled else 0.0
            for value, sampled in zip(chosen, row.response_mask, strict=True)
        ),
    )


def shuffled(groups: Sequence[TrajectoryGroup], *, seed: int) -> list[TrajectoryGroup]:
    """The same groups and rollouts in another order."""
    rng = random.Random(seed)
    out = []
    for group in groups:
        rows = list(group.trajectories)
        rng.shuffle(rows)
        out.append(replace(group, trajectories=tuple(rows)))
    rng.shuffle(out)
    return out


def split_rollouts(groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Every rollout of several turns in a row for each turn, as prefix breaks would split it."""
    out = []
    for group in groups:
        rows: list[Trajectory] = []
        for row in group.trajectories:
            starts = [turn.start for turn in row.turns if turn.role == "assistant"]
            ends = [*starts[1:], len(row.response_ids)]
            rows += [
                _part(row, index, start, end)
                for index, (start, end) in enumerate(zip(starts, ends, strict=True))
            ]
        out.append(replace(group, trajectories=tuple(rows)))
    return out


def _part(row: Trajectory, index: int, start: int, end: int) -> Trajectory:
    """What came before the part is its prompt."""
    return replace(
        row,
        row_index=index,
        prompt_ids=row.prompt_ids + row.response_ids[:start],
        response_ids=row.response_ids[start:end],
        response_mask=row.response_mask[start:end],
        rollout_log_probs=row.rollout_log_probs[start:end],
        policy_versions=row.policy_versions[start:end],
        turns=tuple(
            replace(turn, start=turn.start - start, end=turn.end - start)
            for turn in row.turns
            if start <= turn.start < end
        ),
    )
