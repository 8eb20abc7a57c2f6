"""Drift of a judge: pairs of verdicts, their intervals, and the file between them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.errors import DataError
from agentrl.judges.agreement import LabelledCase
from agentrl.judges.drift import drift, load_verdicts, save_verdicts


def cases(count: int = 80, right: float = 0.8, seed: int = 0) -> list[LabelledCase]:
    """Two answers a prompt, judged right in that share of cases."""
    rng = random.Random(seed)
    found = []
    for index in range(count):
        label = float(index % 2)
        score = label if rng.random() < right else 1.0 - label
        found.append(
            LabelledCase(key=f"{index}", cluster=f"prompt {index // 2}", label=label, score=score)
        )
    return found


def test_the_same_verdicts_are_no_drift() -> None:
    then = cases()
    found = drift(then, then[::-1])
    assert (found.cases, found.changed, found.missing, found.drifted) == (80, 0, 0, ())
    assert found.mean_interval == found.kappa_interval == (0.0, 0.0)


def test_a_few_verdicts_that_change_are_chance() -> None:
    """Fails if any change is called drift: a model that is sampled changes a few each time."""
    then = cases()
    now = [replace(c, score=1 - c.score) if i in (3, 40) else c for i, c in enumerate(then)]
    found = drift(then, now)
    assert (found.changed, found.drifted) == (2, ())


def test_a_kinder_judge_has_drifted_in_its_mean() -> None:
    """Fails if only the agreement is compared: a judge that adds a little keeps its kappa."""
    then = cases()
    now = [replace(case, score=case.score + 0.1) for case in then]
    found = drift(then, now)
    assert found.drifted == ("mean",)
    assert found.mean_now - found.mean_then == pytest.approx(0.1)
    assert found.kappa_now == found.kappa_then


def test_a_judge_that_errs_both_ways_has_drifted_in_kappa() -> None:
    """Fails if only means are compared: errors up and down leave the mean."""
    then = cases(right=1.0)
    now = [replace(c, score=1 - c.score) if i % 10 in (3, 6) else c for i, c in enumerate(then)]
    found = drift(then, now)
    assert found.drifted == ("kappa",)
    assert found.mean_now == found.mean_then
    assert found.kappa_then == 1.0
    assert found.kappa_now == pytest.approx(0.6)
    assert found.kappa_interval is not None
    assert found.kappa_interval[0] < -0.4 < found.kappa_interval[1] < 0


def test_pairs_are_compared_and_not_two_samples() -> None:
    """Fails if the two times are resampled apart: their noise would hide a change in all pairs."""
    rng = random.Random(1)
    then = [replace(case, score=rng.random()) for case in cases(40)]
    now = [replace(case, score=case.score - 0.03) for case in then]
    assert "mean" in drift(then, now).drifted


def test_chance_alone_is_called_drift_in_one_of_ten_at_most() -> None:
    """Two draws of one sampled judge; each of the two tests errs in about one of twenty."""
    wrong = [
        seed
        for seed in range(60)
        if drift(cases(right=0.8, seed=seed), cases(right=0.8, seed=1000 + seed)).drifted
    ]
    assert len(wrong) <= 9


def test_a_kappa_that_is_gone_has_drifted() -> None:
    then = cases(right=1.0)
    middle = [replace(case, score=0.5, label=1.0) for case in then]
    assert drift(middle, middle).kappa_now is None
    now = [replace(case, score=1.0) for case in then]
    assert "kappa" in drift(then, now).drifted, "kappa is 0 where everything is good"


def test_answers_of_one_time_alone_are_counted_and_left_out() -> None:
    then = cases(40)
    now = [*then[:30], *cases(50)[40:]]
    now[0] = replace(now[0], label=1.0 - now[0].label)
    found = drift(then, now)
    assert (found.cases, found.missing) == (29, 40 + 40 - 2 * 29)
    with pytest.raises(DataError, match="none of 10 labelled answers is among the 40 saved"):
        drift(then, cases(50)[40:])


def test_equal_answers_are_paired_by_their_scores() -> None:
    case = LabelledCase(key="same", cluster="p", label=1.0, score=0.0)
    other = LabelledCase(key="b", cluster="q", label=0.0, score=0.0)
    then = [case, replace(case, score=1.0), other]
    assert drift(then, [then[1], then[0], other]).changed == 0


def written(path: Path, rows: Sequence[LabelledCase]) -> Path:
    save_verdicts(path, "judge", rows)
    return path


def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    rows = [replace(case, cluster="\ud800 \u00e4") for case in cases(6)]
    path = written(tmp_path / "verdicts.json", rows)
    assert sorted(load_verdicts(path), key=lambda c: c.key) == sorted(rows, key=lambda c: c.key)
    again = written(tmp_path / "again.json", rows[::-1])
    assert again.read_bytes() == path.read_bytes(), "the order of answers is not kept"


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", '{"cases": []}', '{"format": "agentrl judge verdicts 1"}',
        '{"format": "agentrl judge verdicts 1", "cases": [{"key": "a"}]}',
        '{"format": "agentrl judge verdicts 1", "cases": '
        '[{"key": "a", "cluster": "b", "label": 1, "score": NaN}]}',
    ],
)  # fmt: skip
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "verdicts.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"verdicts\.json: "):
        load_verdicts(path)
    with pytest.raises(DataError, match="cannot be read as saved verdicts"):
        load_verdicts(tmp_path / "missing.json")
