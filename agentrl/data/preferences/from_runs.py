"""Pairs out of the rollouts that a run has stored: same prompt, different rewards.

The rollouts of a group had the same task, so two of them whose rewards differ are a pair, with the
very tokens that were sampled. Pairs of one group share rollouts and are not independent:
`per_group` bounds how many of them there are. Data is divided by task, never by pair, or a held-out
pair would have its twins in the training data.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

from agentrl.types import Completion, PreferencePair, Trajectory, TrajectoryGroup

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRules:
    """Which two rollouts of a group make a pair."""

    by: Literal["reward", "score"] = "reward"
    """What is compared: the reward that was trained on, or the environment's 0-1 verdict."""
    min_gap: float = 1e-9
    """Least difference."""
    per_group: int = 4
    """Most pairs of a group, drawn among all that qualify."""
    flip_scale: float | None = None
    """Draw each label from sigmoid(difference * scale) instead of taking the better one, so that
    the right probability of every pair is known (Bradley-Terry)."""
    seed: int = 0
    """Of what is drawn; a pair does not depend on which other groups there are."""


@dataclass(slots=True)
class PairCounts:
    """Numbers of groups and rollouts that were used, and of those left out."""

    groups: int = 0
    """Groups that were looked at."""
    without: int = 0
    """Groups without a pair."""
    pairs: int = 0
    """Pairs made."""
    rollouts_left_out: Counter[str] = field(default_factory=Counter[str])
    """Rollouts that can be in no pair, by reason."""
    pairs_left_out: Counter[str] = field(default_factory=Counter[str])
    """Pairs that qualified and were not made, by reason."""


def make_pairs(
    groups: Iterable[tuple[str, TrajectoryGroup]],
    rules: PairRules,
    counts: PairCounts,
    decode: Decode | None = None,
) -> Iterator[PreferencePair]:
    """The pairs of groups, one group after the other.

    Args:
        groups: where each was stored, as in `RUN, step 3`, and the group.
        rules: which two make a pair.
        counts: is added to.
        decode: token ids as text; None leaves the texts empty.
    """
    seen: set[bytes] = set()
    for where, group in groups:
        counts.groups += 1
        before = counts.pairs
        qualified = _qualified(group, rules, counts)
        draw = random.Random(_bytes(f"{rules.seed}/{where}/{group.group_id}"))
        draw.shuffle(qualified)
        for better, worse, gap in qualified:
            if counts.pairs - before == rules.per_group:
                counts.pairs_left_out[f"more than {rules.per_group} of a group"] += len(
                    qualified
                ) - qualified.index((better, worse, gap))
                break
            key = _key(better, worse)
            if key in seen:
                counts.pairs_left_out["the same tokens as another pair"] += 1
                continue
            seen.add(key)
            counts.pairs += 1
            yield _pair(where, better, worse, gap, rules, draw, decode)
        counts.without += counts.pairs == before


def is_held_out(task_id: str, share: float, seed: int) -> bool:
    """Return true if a task is in the held-out part; the same for every run and machine."""
    digest = hashlib.blake2b(_bytes(f"{seed}/{task_id}"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def _bytes(text: str) -> bytes:
    """Names of tasks are any text, also what UTF-8 cannot hold."""
    return text.encode("utf-8", "surrogatepass")


def _qualified(
    group: TrajectoryGroup, rules: PairRules, counts: PairCounts
) -> list[tuple[Trajectory, Trajectory, float]]:
    """Better one, worse one, difference."""
    values: list[tuple[Trajectory, float]] = []
    rows = Counter(row.rollout_id for row in group.trajectories)
    for row in group.trajectories:
        value = row.reward if rules.by == "reward" else row.score
        if rows[row.rollout_id] > 1:
            # After a prefix break the second row has another prompt.
            counts.rollouts_left_out["its prompt was changed on the way"] += row.row_index == 0
        elif value is None or not row.rule.reward_trusted:
            counts.rollouts_left_out[f"no {rules.by} that can be trusted"] += 1
        elif not row.num_action_tokens:
            counts.rollouts_left_out["nothing was sampled"] += 1
        else:
            values.append((row, value))
    found: list[tuple[Trajectory, Trajectory, float]] = []
    for (one, first), (other, second) in combinations(values, 2):
        if abs(first - second) < rules.min_gap:
            continue
        if one.prompt_ids != other.prompt_ids:
            counts.pairs_left_out["different prompts"] += 1
        elif one.response_ids == other.response_ids:
            counts.pairs_left_out[f"the same tokens with another {rules.by}"] += 1
        elif first > second:
            found.append((one, other, first - second))
        else:
            found.append((other, one, second - first))
    return found


def _pair(
    where: str,
    better: Trajectory,
    worse: Trajectory,
    gap: float,
    rules: PairRules,
    draw: random.Random,
    decode: Decode | None,
) -> PreferencePair:
    chosen, rejected, probability = better, worse, None
    if rules.flip_scale is not None:
        probability = 1 / (1 + math.exp(-min(gap * rules.flip_scale, 700.0)))
        if draw.random() >= probability:
            chosen, rejected, gap, probability = worse, better, -gap, 1 - probability
    return PreferencePair(
        id=f"{chosen.rollout_id} > {rejected.rollout_id}",
        prompt_ids=better.prompt_ids,
        prompt_text=better.prompt_text or (decode(better.prompt_ids) if decode else ""),
        chosen=_completion(chosen, decode),
        rejected=_completion(rejected, decode),
        margin=gap,
        label_probability=probability,
        task_id=better.task_id,
        source=f"{where}, group {better.group_id}",
    )


def _completion(row: Trajectory, decode: Decode | None) -> Completion:
    """The response up to its last sampled token: nothing after it can be learned from."""
    end = max(index for index, sampled in enumerate(row.response_mask) if sampled) + 1
    ids = row.response_ids[:end]
    return Completion(ids=ids, mask=row.response_mask[:end], text=decode(ids) if decode else "")


def _key(better: Trajectory, worse: Trajectory) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for ids in (better.prompt_ids, better.response_ids, worse.response_ids):
        digest.update(repr(ids).encode())
    return digest.digest()
