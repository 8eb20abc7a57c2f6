"""Pairs out of the rollouts that a run has stored: same prompt, different rewards.

The rollouts of a group had the same task, so two of them whose rewards differ are a pair, with the
very tokens that were sampled. Pairs of one group share rollouts and are not independent:
`per_group` bounds how many of them there are. Data is divided by task and prompt, never by pair, or
a held-out pair would have its twins in the training data.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import PurePath
from typing import Literal

from agentrl.types import Completion, PreferencePair, Trajectory, TrajectoryGroup

Decode = Callable[[Sequence[int]], str]
_Prompt = tuple[tuple[int, ...], tuple[str, ...]]
"""Ids, and the digests of the images among them: those of two images can be the same ids."""


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
    """Of what is drawn, which does not depend on other groups or on where a run is stored."""


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


class PairMaker:
    """Makes the pairs of groups, one group after the other."""

    def __init__(self, rules: PairRules) -> None:
        """Begin without a pair."""
        self.rules = rules
        """Which two rollouts make a pair."""
        self._seen: set[bytes] = set()
        self.counts = PairCounts()
        """What was used so far, and what was left out."""

    def pairs(
        self, run: str, where: str, group: TrajectoryGroup, decode: Decode | None = None
    ) -> Iterator[PreferencePair]:
        """The pairs of one group.

        Args:
            run: where the run is, as it stands in the source of a pair.
            where: place inside the run, as in `train step 3`.
            group: its rollouts.
            decode: token ids as text; None leaves the texts empty.
        """
        rules, counts = self.rules, self.counts
        counts.groups += 1
        before = counts.pairs
        qualified = _qualified(group, rules, counts)
        draw = random.Random(_bytes(f"{rules.seed}/{where}/{group.group_id}"))
        draw.shuffle(qualified)
        for number, (better, worse, gap) in enumerate(qualified):
            if counts.pairs - before == rules.per_group:
                more = f"more than {rules.per_group} of a group"
                counts.pairs_left_out[more] += len(qualified) - number
                break
            key = _key(better, worse)
            if key in self._seen:
                counts.pairs_left_out["the same tokens as another pair"] += 1
                continue
            self._seen.add(key)
            counts.pairs += 1
            name = f"{PurePath(run).name}/"
            yield _pair(name, f"{run}, {where}", better, worse, gap, rules, draw, decode)
        counts.without += counts.pairs == before


class PairParts:
    """Divides pairs into training and held-out data: no task and no prompt is in both.

    A task goes by a hash of its id, the same for every run and machine; one whose prompt has come
    with another task follows that.
    """

    def __init__(self, held_out: float, seed: int) -> None:
        """Hold out a share of the tasks."""
        self._share, self._seed = held_out, seed
        self._of_task: dict[str, bool] = {}
        self._of_prompt: dict[_Prompt, bool] = {}

    def is_held_out(self, pair: PreferencePair) -> bool | None:
        """Return true for held-out data; None where task and prompt are in different parts."""
        prompt = pair.prompt_ids, pair.prompt_images
        of_prompt = self._of_prompt.get(prompt)
        of_task = self._of_task.get(pair.task_id)
        if of_task is None:
            first = is_held_out(pair.task_id, self._share, self._seed)
            of_task = self._of_task[pair.task_id] = first if of_prompt is None else of_prompt
        if self._of_prompt.setdefault(prompt, of_task) != of_task:
            return None
        return of_task


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
    # Compared once each: a group may have a thousand rollouts, and a prompt as many tokens.
    numbers: dict[_Prompt, int] = {}
    prompts = [numbers.setdefault(_prompt(row), len(numbers)) for row, _ in values]
    for ((one, first), at), ((other, second), there) in combinations(
        zip(values, prompts, strict=True), 2
    ):
        gap = abs(first - second)
        if gap < rules.min_gap and not math.isclose(gap, rules.min_gap):
            continue
        if at != there:
            counts.pairs_left_out["different prompts"] += 1
        elif _response(one) == _response(other):
            counts.pairs_left_out[f"the same tokens with another {rules.by}"] += 1
        elif first > second:
            found.append((one, other, first - second))
        else:
            found.append((other, one, second - first))
    return found


def _pair(
    name: str,
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
        id=f"{name}{chosen.rollout_id} > {rejected.rollout_id}",
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
    return Completion(
        ids=ids,
        mask=row.response_mask[:end],
        text=decode(ids) if decode else "",
        images=tuple(span for span in row.images if span.end <= len(row.prompt_ids) + end),
    )


def _prompt(row: Trajectory) -> _Prompt:
    end = len(row.prompt_ids)
    return row.prompt_ids, tuple(span.digest for span in row.images if span.start < end)


def _response(row: Trajectory) -> _Prompt:
    start = len(row.prompt_ids)
    return row.response_ids, tuple(span.digest for span in row.images if span.start >= start)


def _key(better: Trajectory, worse: Trajectory) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in (_prompt(better), _response(better), _response(worse)):
        digest.update(repr(part).encode())
    return digest.digest()
