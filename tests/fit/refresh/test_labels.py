"""Labels of pairs by a function and by the environment, and functions that cannot be used."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.config.reward import RefreshSection
from agentrl.data import TrajectoryStore
from agentrl.errors import ConfigError
from agentrl.fit.refresh.candidates import PER_GROUP, NewestPairs, pairs_of_step
from agentrl.fit.refresh.labels import FunctionLabeller, PairLabels, load_function
from agentrl.judges import pair_labeller
from agentrl.types import Termination
from tests.fit.refresh.refresh_runs import TASKS, group_of, groups_of, rollout

BY_ID = {task.id: task for task in TASKS}


def newest(folder: Path, *steps: int, **sizes: int) -> NewestPairs:
    store = TrajectoryStore(folder / "trajectories")
    for step in steps:
        store.write(step, "train", groups_of(step, **sizes), None)
    return NewestPairs(store, sorted(steps, reverse=True), BY_ID, seed=0)


async def labelled(folder: Path, call: Any, most: int = 100, **options: Any) -> PairLabels:
    labeller = FunctionLabeller(call, {}, name="f", timeout_s=options.pop("timeout_s", 120.0))
    return await labeller.label(newest(folder, 1, 2, **options), most)


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.01, 1.01, "a", np.array([0.1, 0.2])])
async def test_a_label_that_is_no_probability_is_a_failure(tmp_path: Path, value: Any) -> None:
    labels = await labelled(tmp_path, lambda task, a, b: value, most=5)
    assert (len(labels.pairs), labels.failures) == (0, 5)
    assert "expected a number in [0, 1]" in labels.error


async def test_failures_count_and_the_others_are_used(tmp_path: Path) -> None:
    """Fails if one pair that cannot be labelled ends the refresh, or is asked for without end."""
    calls = []

    async def mostly(task: Any, a: Any, b: Any) -> float:
        calls.append(task.id)
        if len(calls) % 3 == 0:
            raise RuntimeError("busy")
        return 1.0

    labels = await labelled(tmp_path, mostly, most=12)
    assert (len(labels.pairs), labels.failures, len(calls)) == (8, 4, 12)
    assert "RuntimeError: busy" in labels.error


async def test_a_label_that_takes_too_long_is_a_failure(tmp_path: Path) -> None:
    async def slow(task: Any, a: Any, b: Any) -> float:
        await asyncio.sleep(600)
        return 1.0

    labels = await labelled(tmp_path, slow, most=2, timeout_s=0.05)
    assert labels.failures == 2
    assert "took longer than 0.05 s" in labels.error


@pytest.mark.parametrize("value", [None, 0.5, np.float64(0.5)])
async def test_ties_are_no_pairs_and_others_come_in_their_place(tmp_path: Path, value: Any) -> None:
    labels = await labelled(
        tmp_path, lambda task, a, b: value if task.id == "train-3" else 0.25, most=14
    )
    assert (labels.ties, labels.failures, len(labels.pairs)) == (6, 0, 14)
    assert {pair.label_probability for pair in labels.pairs} == {0.75}
    assert "train-3" not in {pair.task_id for pair in labels.pairs}


async def test_the_verifier_goes_by_the_reward_of_the_environment(tmp_path: Path) -> None:
    """Fails if it looks at the whole reward, which the reward model itself has paid."""
    section = RefreshSection(labeller="verifier", every_steps=1)
    verifier = load_function(section, base=tmp_path, timeout_s=120.0)
    envs = (0.0, 1.0, 1.0)
    rows = [
        rollout("train-0", i, (30 + i,), env=env, reward=-10.0 * env) for i, env in enumerate(envs)
    ]
    store = TrajectoryStore(tmp_path / "trajectories")
    store.write(1, "train", [group_of("train-0", rows)], None)
    labels = await verifier.label(NewestPairs(store, [1], BY_ID, seed=0), 10)
    assert labels.ties == 1
    assert sorted(pair.chosen.ids for pair in labels.pairs) == [(31,), (32,)]
    assert {pair.rejected.ids for pair in labels.pairs} == {(30,)}
    bare = [rollout("train-0", i, (30 + i,), reward_parts={}) for i in range(2)]
    store.write(2, "train", [group_of("train-0", bare)], None)
    labels = await verifier.label(NewestPairs(store, [2], BY_ID, seed=0), 10)
    assert labels.failures == 1
    assert "no part 'env'" in labels.error


def test_the_judge_that_is_shipped_checks_its_arguments(tmp_path: Path) -> None:
    args = {"model": {"model": "m", "url": "http://localhost:1"}, "standard": "It is short."}
    target = "agentrl.judges:pair_labeller"
    section = RefreshSection(labeller={"target": target, "args": args}, every_steps=1)
    load_function(section, base=tmp_path, timeout_s=120.0)
    assert pair_labeller.__name__ == "pairwise_judge"
    labeller = {"target": target, "args": {**args, "standard": " "}}
    wrong = section.model_copy(update={"labeller": labeller})
    with pytest.raises(ConfigError, match=r"pair_labeller'.*standard: got ' ', expected a text"):
        load_function(wrong, base=tmp_path, timeout_s=120.0)


@pytest.mark.parametrize(
    ("labeller", "args", "said"),
    [
        ("nowhere.py:f", {}, r"nowhere\.py.*expected 'verifier', 'human', or the import string"),
        ("mine.py:two", {}, r"cannot be called with \(task, a, b\).*its signature is \(task, a\)"),
        ("mine.py:three", {"how": 1}, r"\(task, a, b, how=\.\.\.\)"),
        ("mine.py:number", {}, "not callable"),
        ("verifier", {"how": 1}, r"args has how, but labeller 'verifier' takes none"),
    ],
)
def test_a_labeller_that_cannot_be_called_is_refused(
    tmp_path: Path, labeller: str, args: dict[str, Any], said: str
) -> None:
    text = "def two(task, a): ...\ndef three(task, a, b): ...\nnumber = 3\n"
    (tmp_path / "mine.py").write_text(text)
    section = RefreshSection(labeller={"target": labeller, "args": args}, every_steps=1)
    with pytest.raises(ConfigError, match=said):
        load_function(section, base=tmp_path, timeout_s=120.0)


async def test_the_newest_steps_come_first_and_every_group_in_turn(tmp_path: Path) -> None:
    pairs = newest(tmp_path, 1, 2, 3, samples=5)
    first = await pairs.take(4)
    assert [pair.step for pair in first] == [3] * 4
    assert len({pair.task.id for pair in first[:3]}) == 3
    rest = await pairs.take(1000)
    assert await pairs.take(1) == []
    steps = [pair.step for pair in (*first, *rest)]
    assert steps == sorted(steps, reverse=True)
    assert len(steps) == 3 * 3 * PER_GROUP  # of the 10 pairs that a group has
    assert len({pair.key for pair in (*first, *rest)}) == len(steps)
    # The order of the two is drawn: neither the first nor the better rollout always comes first.
    ahead = [pair.a.rollout_id < pair.b.rollout_id for pair in rest]
    assert 0 < sum(ahead) < len(ahead)


def test_rollouts_that_cannot_be_compared_are_in_no_pair() -> None:
    rows = [
        rollout("train-0", 0, (5, 6)),
        rollout("train-0", 1, (5, 6)),  # the same tokens
        rollout("train-0", 2, (7,), prompt_ids=(9,)),  # another prompt
        rollout("train-0", 3, (8,), termination=Termination.ENV_CRASHED, reward=None),
        rollout("train-0", 4, (9,)),
        rollout("train-0", 4, (9,), row_index=1),  # two rows
        rollout("train-0", 5, (3,), response_mask=(0,)),  # nothing sampled
        rollout("train-0", 6, (4, 2), response_mask=(1, 0)),
    ]
    pairs = pairs_of_step(1, [group_of("train-0", rows)], BY_ID, seed=0)
    found = {frozenset((pair.a.rollout_id[-1], pair.b.rollout_id[-1])) for pair in pairs}
    assert found == {frozenset("06"), frozenset("16")}
