"""Rollouts with forks, compaction and sub-agents have the same gradient however they are cut.

The rows come from the loop itself (`tests/rollout/history`), with their ids mapped into the
vocabulary of the tiny model; the reference goes over the message tree turn by turn and knows of no
rows at all.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
import torch

from agentrl.estimators import STD_DDOF, STD_EPS
from agentrl.train.backends.shares import share
from agentrl.types import TrajectoryGroup
from tests.batch.group_advantages import group_advantages
from tests.rollout.history.history_scripts import Move, by_loop
from tests.train.tiny_llama import (
    MODES,
    VOCABULARY,
    algorithm,
    gradient_of,
    make_step,
    relative_error,
    tiny_model,
    with_model_log_probs,
)

PLANS: list[list[list[Move]]] = [
    [[("on", 0)], [("fork", 0), ("on", 0)], [("compact", 0), ("on", 0)]],
    [[("carry", 0), ("fork", 0)], [("sub", 0), ("fork", 0)], [("same", 0)], []],
    [[("on", 0), ("fork", 1), ("compact", 0), ("same", 0)]],
]
"""By group, the moves of each rollout."""


def tree_groups(seed: int = 0) -> list[TrajectoryGroup]:
    rng = random.Random(seed)
    groups = []
    for number, plans in enumerate(PLANS):
        rows = []
        for index, moves in enumerate(plans):
            replies = [rng.choice(["ab", "c", "dad"]) for _ in range(len(moves) + 1)]
            reward = rng.choice([0.0, 0.25, 1.0])
            rows_of, _ = asyncio.run(by_loop(replies, moves, tools=()))
            for row in rows_of:
                rows.append(
                    replace(
                        row,
                        group_id=f"g{number}",
                        rollout_id=f"g{number}/{index}",
                        prompt_ids=mapped(row.prompt_ids),
                        response_ids=mapped(row.response_ids),
                        reward=reward,
                    )
                )
        groups.append(TrajectoryGroup(group_id=f"g{number}", task_id="t", trajectories=tuple(rows)))
    return with_model_log_probs(tiny_model(), groups, noise=0.3)


def mapped(ids: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(3 + token % (VOCABULARY - 3) for token in ids)


def turn_by_turn(model, groups, section):
    """Gradient of the plain formula, one forward pass for each turn with all that came before."""
    turns = []
    for group in groups:
        rollouts = [*group.rollouts()]
        values = group_advantages(
            [rows[0].reward for rows in rollouts],
            estimator=section.advantage_estimator,
            ddof=STD_DDOF,
            eps=STD_EPS,
        )
        for rows, advantage in zip(rollouts, values, strict=True):
            found = [
                (row.prompt_ids + row.response_ids[: turn.start], row, turn)
                for row in rows
                for turn in row.turns
                if turn.role == "assistant"
            ]
            own = sum(turn.end - turn.start for _, _, turn in found)
            turns += [(before, row, turn, advantage, own) for before, row, turn in found]
    total = sum(turn.end - turn.start for _, _, turn, _, _ in turns)
    count = sum(len([*group.rollouts()]) for group in groups)
    model.zero_grad()
    for before, row, turn, advantage, own in turns:
        said = row.response_ids[turn.start : turn.end]
        logits = model(torch.tensor([before + said])).logits[0, len(before) - 1 : -1]
        logp = torch.log_softmax(logits / row.temperature, -1)[range(len(said)), list(said)]
        old = torch.tensor(row.rollout_log_probs[turn.start : turn.end], dtype=torch.float64)
        ratio = torch.exp(logp - old)
        low, high = 1 - section.eps_clip_low, 1 + section.eps_clip_high
        loss = -torch.min(ratio * advantage, ratio.clamp(low, high) * advantage).sum()
        divisor = {
            "token-mean": total,
            "seq-mean-token-mean": count * own,
            "seq-mean-token-sum": count,
            "seq-mean-token-sum-norm": count * section.horizon,
        }[section.loss_agg_mode]
        (loss / divisor).backward()
    gradient = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return gradient


def shuffled(groups: list[TrajectoryGroup], seed: int) -> list[TrajectoryGroup]:
    rng = random.Random(seed)
    out = [
        replace(group, trajectories=tuple(rng.sample(group.trajectories, len(group.trajectories))))
        for group in groups
    ]
    return rng.sample(out, len(out))


def over_ranks(model, step, section, *, ranks):
    """The sum of what each rank computes of its share."""
    (update,) = step.updates
    parts = [share(update, rank, ranks, lockstep=False) for rank in range(ranks)]
    gradients = [gradient_of(model, replace(step, updates=(part,)), section) for part in parts]
    return {name: sum(gradient[name] for gradient in gradients) for name in gradients[0]}


@pytest.mark.parametrize("mode", MODES)
def test_trees_have_one_gradient(mode):
    """Fails if a shared turn is trained twice or in no row, if a row weighs as a rollout,
    or if a branch is read behind another branch's tokens."""
    model, groups = tiny_model(), tree_groups()
    section = algorithm(loss_agg_mode=mode, old_log_probs="rollout")
    want = turn_by_turn(model, groups, section)
    longest = max(len(r.prompt_ids + r.response_ids) for g in groups for r in g.trajectories)
    steps = {
        "row by row": make_step(groups, algorithm=section, micro_batch_tokens=longest),
        "packed": make_step(groups, algorithm=section, micro_batch_tokens=2 * longest),
        "one pass": make_step(groups, algorithm=section, micro_batch_tokens=10_000),
        "shared": make_step(
            groups, algorithm=section, micro_batch_tokens=10_000, prefix_sharing=True
        ),
        "shared, parted": make_step(
            groups, algorithm=section, micro_batch_tokens=longest, prefix_sharing=True
        ),
        "another order": make_step(
            shuffled(groups, 3), algorithm=section, micro_batch_tokens=10_000, prefix_sharing=True
        ),
    }
    found = {name: gradient_of(model, step, section) for name, step in steps.items()}
    found["three ranks"] = over_ranks(model, steps["shared"], section, ranks=3)
    errors = {name: relative_error(gradient, want) for name, gradient in found.items()}
    assert max(errors.values()) < 1e-12, errors
