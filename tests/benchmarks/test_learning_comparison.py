"""The pure parts of `benchmarks/learning`: marks of a budget, intervals, tables, commands."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentrl.config import load_config, parse_config
from agentrl.config.fleet import SyncSection
from agentrl.data import TrajectoryStore
from agentrl.sync import make_sender, resolve_backend
from agentrl.types import Termination, Trajectory, TrajectoryGroup

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "learning"))

from comparisons import comparison, pieces, train_command
from score_tables import Point, crossed_interval, difference, plot, score_table
from snapshots import (
    FINISHED_FILE,
    Held,
    SnapshotPlan,
    Snapshots,
    copy_weights,
    snapshots_in,
)

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


class Clock:
    """A clock that goes on only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_mark_gets_the_weights_of_the_last_step_that_was_complete_by_then() -> None:
    written: dict[int, Held] = {}
    snapshots = Snapshots((10, 20), written.__setitem__, now=Clock())
    for step, position in enumerate((8.0, 15.0, 23.0), start=1):
        snapshots.add(lambda step=step: {"w": step}, step=step, position=position)
    assert [(held.step, held.position) for held in written.values()] == [(1, 8.0), (2, 15.0)]
    assert written[1].weights == {"w": 2}
    assert snapshots.finished


def test_a_step_that_ends_at_the_mark_belongs_to_it() -> None:
    written: dict[int, Held] = {}
    snapshots = Snapshots((10,), written.__setitem__, now=Clock())
    snapshots.add(dict, step=1, position=10.0)
    assert not written
    snapshots.add(dict, step=2, position=11.0)
    assert written[0].step == 1


def test_a_long_first_step_leaves_the_model_it_began_with() -> None:
    written: dict[int, Held] = {}
    snapshots = Snapshots((10, 20), written.__setitem__, now=Clock())
    snapshots.add(dict, step=1, position=30.0)
    assert [held.weights for held in written.values()] == [None, None]


def test_copies_and_files_take_no_time_of_the_budget() -> None:
    clock = Clock()

    def slow(*_: object) -> dict[str, int]:
        clock.now += 5
        return {}

    snapshots = Snapshots((10, 20), slow, now=clock)
    clock.now += 12
    assert snapshots.seconds == 12
    snapshots.add(slow, step=1, position=snapshots.seconds)
    assert snapshots.seconds == 12


def test_a_plan_comes_back_and_its_last_mark_finishes(tmp_path: Path) -> None:
    model, folder = tmp_path / "model", tmp_path / "piece"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_text("those it began with")
    folder.mkdir()
    plan = SnapshotPlan(unit="seconds", marks=(1.0, 2.0), model=str(model), dtype="bfloat16")
    plan.write(folder)
    assert SnapshotPlan.read(folder) == plan
    snapshots = snapshots_in(folder)
    weights = {"w": torch.full((2,), 3.0)}
    snapshots.add(lambda: copy_weights(weights.items(), dtype=plan.dtype), step=1, position=1.5)
    assert json.loads((folder / "mark-0.json").read_text())["model"] == str(model)
    assert not (folder / FINISHED_FILE).exists()
    weights["w"] += 1
    snapshots.add(dict, step=2, position=9.0)
    facts = json.loads((folder / "mark-1.json").read_text())
    assert (facts["step"], facts["position"]) == (1, 1.5)
    saved = load_file(Path(facts["model"]) / "model.safetensors")["w"]
    assert saved.dtype is torch.bfloat16
    assert saved.tolist() == [3.0, 3.0]
    assert (Path(facts["model"]) / "config.json").is_file()
    assert (folder / FINISHED_FILE).exists()


def group(step: int, *, tokens: int) -> TrajectoryGroup:
    name = f"step-{step}"
    row = Trajectory(
        task_id="a",
        group_id=name,
        rollout_id=f"{name}/0",
        prompt_ids=(1, 2),
        response_ids=(3,) * (tokens + 2),
        response_mask=(1,) * tokens + (0, 0),
        rollout_log_probs=(-1.0,) * tokens + (0.0, 0.0),
        policy_versions=(step,) * tokens + (-1, -1),
        reward=1.0,
        termination=Termination.ENV_DONE,
    )
    return TrajectoryGroup(group_id=name, task_id="a", trajectories=(row,))


def test_a_run_counts_sampled_tokens_and_its_engine_takes_the_ticket(tmp_path: Path) -> None:
    model, folder = tmp_path / "model", tmp_path / "piece"
    model.mkdir()
    folder.mkdir()
    SnapshotPlan(unit="tokens", marks=(45.0,), model=str(model), dtype="float32").write(folder)
    store = TrajectoryStore(folder / "run" / "trajectories")
    sync = SyncSection(backend="snapshot_transfer:SnapshotTransfer", directory=str(folder))
    route = {"engine_kind": "embedded", "same_host": True, "shared_weights": True, "cuda": False}
    backend = resolve_backend(sync, **route)
    sender = make_sender(sync, backend=backend)
    assert sender.connect(1) == [{}]
    for step in (1, 2, 3):
        store.write(step, "train", [group(step, tokens=20)], None)
        ticket = sender.send([("w", torch.full((2,), float(step)))], step)
        assert (ticket.backend, ticket.version) == ("inprocess", step)
    facts = json.loads((folder / "mark-0.json").read_text())
    assert (facts["step"], facts["position"]) == (2, 40)
    assert load_file(folder / "mark-0" / "model.safetensors")["w"].tolist() == [2.0, 2.0]


def test_the_interval_holds_the_spread_of_seeds_and_of_tasks() -> None:
    # Two seeds with means 0.4 and 0.6 (variance 0.02), four tasks with means 0, 0.5, 0.5, 1
    # (variance 1/6): 0.02 / 2 + 1/24.
    seeds = [{"a": 0.0, "b": 0.0, "c": 0.6, "d": 1.0}, {"a": 0.0, "b": 1.0, "c": 0.4, "d": 1.0}]
    found = crossed_interval(seeds)
    total = 0.02 / 2 + (1 / 6) / 4
    freedom = total**2 / (0.01**2 / 1 + (1 / 24) ** 2 / 3)
    assert math.floor(freedom) == 3
    assert found.mean == pytest.approx(0.5)
    assert found.half == pytest.approx(3.1824 * math.sqrt(total), rel=1e-4)


def test_one_seed_leaves_the_tasks_alone() -> None:
    found = crossed_interval([{"a": 0.0, "b": 1.0, "c": 0.5}])
    assert found.half == pytest.approx(4.3027 * 0.5 / math.sqrt(3), rel=1e-4)


def test_equal_scores_leave_the_ends_unknown() -> None:
    assert math.isnan(crossed_interval([{"a": 0.5, "b": 0.5}]).low)


def test_scores_of_other_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="1 and 2 tasks"):
        crossed_interval([{"a": 0.0}, {"a": 0.0, "b": 1.0}])


def test_a_difference_is_paired_by_task() -> None:
    first = [{"a": 0.2, "b": 0.9}, {"a": 0.4, "b": 1.0}]
    second = [{"a": 0.1, "b": 0.8}, {"a": 0.2, "b": 0.8}]
    assert difference(first, second).mean == pytest.approx(0.15)


def points() -> list[Point]:
    return [
        Point(
            side=side,
            seed=seed,
            mark=mark,
            position=mark - 3,
            step=int(mark / 30) + seed,
            scores={"a": 0.1 * seed, "b": gain * mark / 100},
        )
        for side, gain in (("agentrl", 0.8), ("TRL", 0.4))
        for seed in range(2)
        for mark in (60.0, 120.0)
    ]


def test_the_table_has_a_row_for_each_mark_and_the_difference() -> None:
    table = score_table(points(), ["agentrl", "TRL"], start={"a": 0.0, "b": 0.1}, unit="seconds")
    lines = table.splitlines()
    assert [line.split(" | ")[0] for line in lines] == [
        "| minutes",
        "| ---",
        "| 0",
        "| 1.0",
        "| 2.0",
    ]
    assert "2.5 | " in lines[3]
    assert lines[-1].split(" | ")[-1].startswith("+0.24 [")


def test_the_plot_names_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "curve.svg"
    start = {"a": 0.0, "b": 0.1}
    plot(points(), ["agentrl", "TRL"], path, start=start, unit="seconds", title="a title")
    assert path.stat().st_size > 1000


def test_sides_take_turns_at_being_first() -> None:
    sides = comparison("trl", load_config(CONFIG)).sides
    order = [(side.name, seed) for side, seed in pieces(sides, 2)]
    assert order == [("agentrl", 0), ("TRL", 0), ("TRL", 1), ("agentrl", 1)]


@pytest.mark.parametrize("name", ["trl", "turns", "schedule"])
def test_every_side_is_a_valid_run(name: str, tmp_path: Path) -> None:
    chosen = comparison(name, load_config(CONFIG))
    for side in chosen.sides:
        command = train_command(side, CONFIG, tmp_path, seed=3, overrides=("model.dtype=float32",))
        words = [word for word in command if "=" in word and " " not in word]
        config = load_config(CONFIG, words)
        assert config.model.dtype == "float32"
        ahead = config.schedule.staleness_threshold > 0
        if name == "schedule":
            assert ahead is (side.name == "asynchronous")
        assert config.train.max_minutes == (
            load_config(CONFIG).train.max_minutes if side.trl else None
        )
    assert parse_config(load_config(CONFIG).model_dump(mode="json"), chosen.scores[0].overrides)
