"""The difficulty filter: which tasks are left out, by what was measured where."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema import DatasetSection, TrainDatasetSection
from agentrl.data import TrajectoryStore, load_tasks
from agentrl.data.tasks.difficulty import measured_pass_rates
from agentrl.errors import DataError
from agentrl.types import Termination, TrajectoryGroup
from tests.data.records import trajectory

NEVER, SOMETIMES, ALWAYS, NEW = "never", "some\udcfftimes", "always", "new"


def rolled_out(step: int, scores: dict[str, list[float | None]]) -> list[TrajectoryGroup]:
    groups = []
    for task, values in scores.items():
        name = f"step-{step}/{task}"
        rows = []
        for index, score in enumerate(values):
            common: dict[str, Any] = {
                "task_id": task,
                "group_id": name,
                "rollout_id": f"{name}/{index}",
                "score": score,
                # Penalties and functions are no matter of difficulty.
                "reward": None if score is None else 5.0,
                "termination": Termination.ENV_CRASHED if score is None else Termination.ENV_DONE,
            }
            # Two rows of one rollout, which counts once.
            rows += [trajectory(**common), trajectory(**common, row_index=1)][: 1 + index % 2]
        groups.append(TrajectoryGroup(group_id=name, task_id=task, trajectories=tuple(rows)))
    return groups


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    store = TrajectoryStore(tmp_path / "earlier" / "trajectories")
    store.write(1, "train", rolled_out(1, {NEVER: [0.0, 0.0], ALWAYS: [1.0, None]}))
    store.write(2, "train", rolled_out(2, {SOMETIMES: [1.0, 0.0, 0.0], ALWAYS: [1.0]}))
    store.write(0, "eval/held", rolled_out(0, {NEVER: [1.0], ALWAYS: [0.5]}))
    return tmp_path / "earlier"


def load(folder: Path, source: str, bounds: tuple[float, float] = (0.1, 0.9)) -> list[str]:
    path = folder / "tasks.jsonl"
    ids = [NEVER, SOMETIMES, ALWAYS, NEW]
    rates = [0, 0.5, 1.0, None]
    rows = [{"id": i, "prompt": "?", "rate": r} for i, r in zip(ids, rates, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    section = DatasetSection(source=path.name, difficulty={"keep": bounds, "source": source})
    return [task.id for task in load_tasks(section, base=folder)]


def test_mean_score_over_trusted_rollouts(earlier: Path) -> None:
    """Fails if rows count and not rollouts (1/4 for the middle one), or if evaluations of other
    tasks of the same name are mixed in."""
    found = {name: (rate.mean, rate.n) for name, rate in measured_pass_rates(earlier).items()}
    assert found == {NEVER: (0.0, 2), ALWAYS: (1.0, 2), SOMETIMES: (1 / 3, 3)}


@pytest.mark.parametrize("source", ["earlier", "earlier/trajectories", "column:rate"])
def test_too_easy_and_too_hard_are_left_out_and_said(
    tmp_path: Path, earlier: Path, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert load(tmp_path, source) == [SOMETIMES, NEW]
    assert "leaves 2 of 4 tasks out (1 too easy, 1 too hard) and keeps 2, 1 of them not" in (
        caplog.text
    )


def test_bounds_are_inside(tmp_path: Path, earlier: Path) -> None:
    assert load(tmp_path, "earlier", (0.0, 1 / 3)) == [NEVER, SOMETIMES, NEW]


def test_one_evaluation_can_be_named(tmp_path: Path, earlier: Path) -> None:
    assert load(tmp_path, "earlier/trajectories/eval/held") == [SOMETIMES, ALWAYS, NEW]
    with pytest.raises(DataError, match=r"eval/hled holds no trajectories; there are .*eval/held"):
        load(tmp_path, "earlier/trajectories/eval/hled")


def test_several_evaluations_are_not_mixed(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "scores" / "trajectories")
    for name in ("one", "other"):
        store.write(0, f"eval/{name}", rolled_out(0, {ALWAYS: [1.0]}))
    with pytest.raises(DataError, match=r"several evaluations.*eval/one, .*eval/other"):
        load(tmp_path, "scores")


@pytest.mark.parametrize(
    ("source", "bounds", "message"),
    [
        ("nowhere", (0.1, 0.9), "nowhere holds no trajectories; expected a run directory"),
        ("column:nothing", (0.1, 0.9), "of none of the 4 tasks"),
        ("column:prompt", (0.1, 0.9), "of none of the 4 tasks"),
    ],
)
def test_what_measures_nothing_is_an_error(
    tmp_path: Path, earlier: Path, source: str, bounds: tuple[float, float], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load(tmp_path, source, bounds)


def test_no_task_left_and_a_rate_that_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "tasks.csv"
    path.write_text("id,prompt,rate\na,?,0.25\nb,?,\n")
    section = DatasetSection(
        source=path.name, difficulty={"keep": (0.2, 0.3), "source": "column:rate"}
    )
    assert [task.id for task in load_tasks(section, base=tmp_path)] == ["a", "b"]
    path.write_text("id,prompt,rate\na,?,0.75\n")
    with pytest.raises(DataError, match=r"leaves 1 of 1 tasks out .1 too easy.*; widen it"):
        load_tasks(section, base=tmp_path)
    path.write_text("id,prompt,rate\na,?,often\n")
    with pytest.raises(DataError, match=r"task 'a': column 'rate' is 'often', expected a pass"):
        load_tasks(section, base=tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"keep": (0.1, 0.9)}, r"difficulty\.source\n  Field required"),
        (
            {"source": "runs/a"},
            r"nothing is decided .* set difficulty\.keep, .* selection: variance",
        ),
        ({"keep": (0.9, 0.1), "source": "x"}, "expected .low, high."),
        ({"keep": (0.1, 9.0), "source": "x"}, "expected .low, high."),
    ],
)
def test_contradictions_in_the_config(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainDatasetSection.model_validate({"source": "x.jsonl", "difficulty": values})
