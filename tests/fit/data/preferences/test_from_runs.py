"""Pairs of stored rollouts: which two, with which tokens, and what becomes of the others."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import DataError
from agentrl.fit.data.preferences.files import PairWriter
from agentrl.fit.data.preferences.from_runs import (
    PairCounts,
    PairMaker,
    PairParts,
    PairRules,
    is_held_out,
)
from agentrl.fit.data.preferences.layouts import PairLayout
from agentrl.fit.data.preferences.load import load_pairs
from agentrl.types import PreferencePair, Termination, Trajectory, TrajectoryGroup
from tests.data.records import group, trajectory


def row(number: int, reward: float | None, name: str = "g", **values: Any) -> Trajectory:
    ids = (100 + number, 11, 12, 13, 14)
    return trajectory(
        task_id=f"task-{name}", group_id=name, rollout_id=f"{name}-{number}", reward=reward,
        **{
            "score": reward, "response_ids": ids, "response_mask": (1, 1, 0, 1, 0),
            "rollout_log_probs": (-0.5, -0.5, 0.0, -0.5, 0.0),
            "policy_versions": (0, 0, -1, 0, -1), **values,
        },
    )  # fmt: skip


def pairs_of(*groups: TrajectoryGroup, **rules: Any) -> tuple[list[PreferencePair], PairCounts]:
    maker = PairMaker(PairRules(**rules))
    made = [pair for each in groups for pair in maker.pairs("runs/run", "train step 1", each)]
    return made, maker.counts


def write_pairs(path: Path, pairs: list[PreferencePair]) -> int:
    with PairWriter(path) as writer:
        for pair in pairs:
            writer.write(pair)
    return writer.count


def test_a_pair_has_the_tokens_that_were_sampled() -> None:
    """Fails if the worse one is chosen, or if the environment's last tokens stay."""
    (pair,), counts = pairs_of(group(row(0, 0.25), row(1, 1.0)))
    assert pair.prompt_ids == (1, 2, 3)
    assert pair.prompt_text == "add 1"
    assert (pair.chosen.ids, pair.chosen.mask) == ((101, 11, 12, 13), (1, 1, 0, 1))
    assert pair.rejected.ids[0] == 100
    assert (pair.margin, pair.task_id, pair.label_probability) == (0.75, "task-g", None)
    assert pair.source == "runs/run, train step 1, group g"
    assert (counts.groups, counts.without, counts.pairs) == (1, 0, 1)


def test_what_can_be_in_no_pair_is_counted() -> None:
    """Fails if a reward that cannot be trusted is compared, or rows of a broken prompt are."""
    broken = (row(4, 0.5, row_index=0), row(4, 0.5, row_index=1))
    crashed = row(3, None, termination=Termination.GRADER_CRASHED)
    silent = row(5, 0.0, response_mask=(0,) * 5)
    same = row(6, 0.0, response_ids=(101, 11, 12, 13, 14))
    other = row(7, 0.0, prompt_ids=(9, 9))
    rows = (row(1, 1.0), row(2, 1.0), crashed, *broken, silent, same, other)
    pairs, counts = pairs_of(group(*rows), group(row(0, 0.5, "h"), row(1, 0.5, "h")))
    assert [pair.id for pair in pairs] == ["run/g-2 > g-6"]
    assert counts.without == 1
    assert counts.rollouts_left_out == {
        "no reward that can be trusted": 1,
        "its prompt was changed on the way": 1,
        "nothing was sampled": 1,
    }
    assert counts.pairs_left_out == {
        "the same tokens with another reward": 1,
        "different prompts": 2,
    }


def test_pairs_of_a_group_are_bounded_and_drawn() -> None:
    """Fails if always the first ones are taken, or if another group changes what is drawn."""
    many = group(*(row(n, n / 10) for n in range(8)))
    taken, counts = pairs_of(many, per_group=3)
    assert len(taken) == 3
    assert counts.pairs_left_out == {"more than 3 of a group": 25}
    beside, _ = pairs_of(group(row(0, 0.0, "h"), row(1, 1.0, "h")), many, per_group=3)
    assert [pair.id for pair in beside[1:]] == [pair.id for pair in taken]
    again, _ = pairs_of(many, per_group=3, seed=1)
    assert {pair.id for pair in again} != {pair.id for pair in taken}
    wide, _ = pairs_of(many, per_group=99, min_gap=0.55)
    assert {pair.id for pair in wide} == {"run/g-6 > g-0", "run/g-7 > g-0", "run/g-7 > g-1"}


def test_the_score_may_be_compared_instead() -> None:
    pairs, _ = pairs_of(group(row(0, 1.0, score=0.0), row(1, 0.0, score=1.0)), by="score")
    assert [pair.id for pair in pairs] == ["run/g-1 > g-0"]


def test_tokens_that_come_again_make_no_second_pair() -> None:
    one = group(row(0, 0.0), row(1, 1.0))
    pairs, counts = pairs_of(one, one)
    assert len(pairs) == 1
    assert counts.pairs_left_out == {"the same tokens as another pair": 1}


def test_drawn_labels_are_right_as_often_as_they_say() -> None:
    """Fails if the probability is that of the other one, or the draw ignores it."""
    groups = [group(row(0, 0.0, f"g{n}"), row(n + 1, 0.5, f"g{n}")) for n in range(2000)]
    pairs, _ = pairs_of(*groups, flip_scale=2.0)
    truth = 1 / (1 + math.exp(-1))
    assert Counter(round(pair.label_probability or 0, 6) for pair in pairs).keys() == {
        round(truth, 6), round(1 - truth, 6),
    }  # fmt: skip
    right = [pair for pair in pairs if pair.margin == 0.5]
    assert all(pair.label_probability == truth for pair in right)
    assert abs(len(right) / 2000 - truth) < 4 * math.sqrt(truth * (1 - truth) / 2000)


def test_pairs_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    pairs, _ = pairs_of(
        group(row(0, 0.25), row(1, 1.0)), group(row(2, 0.0, "\ud800"), row(3, 1.0, "\ud800"))
    )
    assert write_pairs(tmp_path / "train.parquet", pairs) == 2
    loaded = load_pairs(str(tmp_path))
    assert loaded.layouts == {PairLayout.SAMPLED}
    assert loaded[0] == pairs[0]
    assert loaded[1].task_id == "task-?"
    assert loaded[1].chosen == pairs[1].chosen


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"chosen_mask": [1, 2]}, "chosen_ids has 4 tokens and chosen_mask 2"),
        ({"prompt_ids": []}, "prompt_ids is empty"),
        ({"rejected_ids": [-1], "rejected_mask": [1]}, "expected a list of token ids"),
    ],
)
def test_a_broken_row_of_tokens_is_named(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    import pyarrow.parquet as pq

    pairs, _ = pairs_of(group(row(0, 0.25), row(1, 1.0)))
    path = tmp_path / "train.parquet"
    write_pairs(path, pairs)
    table = pq.read_table(path)
    rows = [{**values, **changed} for values in table.to_pylist()]
    pq.write_table(table.from_pylist(rows, table.schema), path)
    with pytest.raises(DataError, match=f"row 1: .*{message}"):
        load_pairs(str(path))


def test_the_same_tasks_are_held_out_everywhere() -> None:
    assert [n for n in range(40) if is_held_out(f"t{n}", 0.1, 0)] == [20, 26, 39]
    held = [is_held_out(f"t{n}", 0.1, 0) for n in range(5000)]
    assert 400 < sum(held) < 600
    assert [is_held_out(f"t{n}", 0.1, 1) for n in range(5000)] != held
    assert not any(is_held_out(f"t{n}", 0.0, 0) for n in range(500))


def test_neither_a_task_nor_a_prompt_is_in_both_parts() -> None:
    """Fails if pairs are divided by task alone: 40 tasks here share ten prompts."""
    parts, seen = PairParts(0.4, 0), {True: set[object](), False: set[object]()}
    pairs, _ = pairs_of(*(
        group(*(row(10 * n + k, float(k), f"{n}", prompt_ids=(1, n % 10)) for k in (0, 1)))
        for n in range(40)
    ))  # fmt: skip
    for pair in pairs:
        part = parts.is_held_out(pair)
        assert part is not None
        seen[part] |= {pair.task_id, pair.prompt_ids}
    assert seen[True]
    assert seen[False]
    assert not seen[True] & seen[False]
    (one,), _ = pairs_of(
        group(row(1, 0.0, "1", prompt_ids=(9,)), row(2, 1.0, "1", prompt_ids=(9,)))
    )
    mixed = PairParts(0.5, 0)
    mixed._of_task["task-1"], mixed._of_prompt[((9,), ())] = True, False
    assert mixed.is_held_out(one) is None


def test_a_file_that_cannot_be_finished_is_not_there(tmp_path: Path) -> None:
    pairs, _ = pairs_of(group(row(0, 0.25), row(1, 1.0)))

    def stopped() -> None:
        with PairWriter(tmp_path / "train.parquet") as writer:
            writer.write(pairs[0])
            writer._write_rows()
            raise KeyError("stopped")

    with pytest.raises(KeyError):
        stopped()
    assert list(tmp_path.iterdir()) == []
    with PairWriter(tmp_path / "train.parquet"):
        pass
    assert list(tmp_path.iterdir()) == []
