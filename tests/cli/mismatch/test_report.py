"""Gaps that are planted in tables of tokens, each of one cause; and in the files of a real run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.cli.mismatch.causes import find_causes
from agentrl.cli.mismatch.records import Cause
from agentrl.cli.mismatch.report import mismatch
from agentrl.cli.mismatch.token_table import GapTable, read_gaps
from agentrl.cli.replay.recorded_run import open_recorded
from agentrl.config import RunConfig, load_config, parse_config
from agentrl.config.plan import plan_run
from agentrl.data import TrajectoryStore
from agentrl.disk.stored_groups import stored_groups
from agentrl.errors import RunError
from agentrl.types import TrajectoryGroup
from tests.runtime.tiny_project import agentrl, write_project

ROLLOUTS, TURNS, LENGTH, VOCABULARY = 24, 3, 20, 30


def softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    logits = logits / temperature
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def table_of(seed: int = 0, noise: float = 0.01, temperature: float = 1.0) -> GapTable:
    """Samples of random distributions; both sides compute them, the trainer with rounding."""
    rng = np.random.default_rng(seed)
    number = ROLLOUTS * TURNS * LENGTH
    logits = 2.5 * rng.standard_normal((number, VOCABULARY))
    sampled = softmax(logits, temperature)
    token = (sampled + rng.gumbel(size=sampled.shape)).argmax(axis=1)
    rounded = logits + noise * rng.standard_normal(logits.shape)
    at = np.arange(number)
    log_probs = softmax(rounded)
    return GapTable(
        sampler=sampled[at, token],
        trainer=log_probs[at, token],
        entropy=-(np.exp(log_probs) * log_probs).sum(axis=1),
        lag=np.zeros(number, dtype=np.int64),
        turn=at // LENGTH % TURNS + 1,
        in_turn=at % LENGTH + 1,
        position=10 + at % (TURNS * LENGTH),
        row=np.zeros(number, dtype=np.int64),
        rollout=at // (TURNS * LENGTH),
        response=at % (TURNS * LENGTH),
        token=token,
        rollout_ids=tuple(f"r{index}" for index in range(ROLLOUTS)),
    )


def shifted(table: GapTable, where: np.ndarray, by: float, **changes: Any) -> GapTable:
    rng = np.random.default_rng(1)
    moved = table.trainer + where * by * rng.standard_normal(len(table))
    return replace(table, trainer=np.minimum(moved, 0.0), **changes)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    project = write_project(
        tmp_path_factory.mktemp("config"), schedule__staleness_threshold=0.5, rollout__top_p=1.0
    )
    return load_config(project)


def found_in(
    table: GapTable, config: RunConfig, curve: Mapping[int, float] | None = None
) -> tuple[Cause, ...]:
    run = plan_run(config, Path())
    return find_causes(table, run, curve=curve or {})


def causes_of(table: GapTable, config: RunConfig) -> list[str]:
    return [cause.name for cause in found_in(table, config)]


@pytest.mark.parametrize("seed", range(5))
def test_rounding_is_named_so_and_agreement_not_at_all(seed: int, config: RunConfig) -> None:
    assert causes_of(table_of(seed, noise=0.001), config) == []
    assert causes_of(table_of(seed, noise=0.02), config) == ["rounding"]
    assert causes_of(table_of(seed, noise=0.05), config) == ["rounding"]


def test_rounding_has_a_head_in_float32_as_its_first_lever(config: RunConfig) -> None:
    narrow = config.model.model_copy(update={"dtype": "bfloat16"})
    for head, first in (("model", "model.head_dtype"), ("float32", "model.dtype")):
        section = narrow.model_copy(update={"head_dtype": head})
        changed = config.model_copy(update={"model": section})
        (cause,) = found_in(table_of(0, noise=0.02), changed)
        assert (cause.levers[0].key, cause.levers[0].value) == (first, "float32")


@pytest.mark.parametrize("seed", range(3))
def test_older_weights_are_named_with_their_levers(seed: int, config: RunConfig) -> None:
    table = table_of(seed)
    lag = np.where(table.rollout < 8, 3, 0)
    found = found_in(shifted(table, lag > 0, 0.3, lag=lag), config)
    # Rollouts of other weights are few, too.
    assert found[0].name == "stale_weights"
    assert "33.3 % of the tokens are 1 to 3 steps old" in found[0].evidence[0]
    levers = {lever.key: lever.value for lever in found[0].levers}
    assert levers["schedule.staleness_threshold"] == 0.25
    assert levers["algorithm.is_correction_type"] == "seq-mask-tis"
    # Together they give a config that loads: the preset means the sampler's own log-probabilities.
    changed = config.model_dump()
    for key, value in levers.items():
        section, leaf = key.split(".")
        assert leaf in changed[section]
        changed[section][leaf] = value
    assert parse_config(changed).algorithm.is_correction_type == "seq-mask-tis"


@pytest.mark.parametrize("temperature", [0.7, 0.85, 1.2, 1.5])
def test_another_temperature_is_read_off_the_slope(temperature: float, config: RunConfig) -> None:
    found = found_in(table_of(temperature=temperature), config)
    assert [cause.name for cause in found] == ["temperature"]
    told = float(found[0].evidence[1].rpartition(" ")[2])
    assert told == pytest.approx(temperature, rel=0.25)


def test_a_nucleus_is_named_only_where_there_is_one(config: RunConfig) -> None:
    table = table_of(noise=0.0)
    # The mass of the nucleus lies between top_p and 1.
    mass = np.random.default_rng(2).uniform(np.log(0.8), 0.0, len(table))
    table = replace(table, sampler=np.minimum(0.0, table.trainer - mass))
    section = config.rollout.model_copy(update={"top_p": 0.8})
    nucleus = config.model_copy(update={"rollout": section})
    assert causes_of(table, nucleus)[0] == "top_p"
    assert "top_p" not in causes_of(table, config)
    assert "top_p" not in causes_of(table_of(noise=0.1), nucleus)


def test_tokens_after_a_boundary_are_named(config: RunConfig) -> None:
    table = table_of()
    start = (table.turn > 1) & (table.in_turn <= 2)
    first = found_in(shifted(table, start, 2.0), config)
    assert [cause.name for cause in first] == ["boundary"]
    assert first[0].title.startswith("the first tokens after")
    whole = found_in(shifted(table, table.turn > 1, 1.0), config)
    assert whole[0].title.startswith("all turns after")


def test_few_rollouts_are_named_by_their_ids(config: RunConfig) -> None:
    table = table_of()
    found = found_in(shifted(table, np.isin(table.rollout, (3, 17)), 1.0), config)
    assert [cause.name for cause in found] == ["few_rollouts"]
    assert "2 of 24 rollouts" in found[0].title
    assert {"r3", "r17"} == set(found[0].evidence[1].removeprefix("worst: ").split(", "))


def test_rows_after_a_break_and_a_growing_context_are_told_apart(config: RunConfig) -> None:
    table = replace(table_of(), turn=np.ones(ROLLOUTS * TURNS * LENGTH, dtype=np.int64))
    row = (table.rollout % 2).astype(np.int64)
    assert causes_of(shifted(table, row > 0, 1.0, row=row), config) == ["prefix_break"]
    growing = shifted(table, (table.position - 10) / 60, 1.0)
    assert causes_of(growing, config) == ["context"]


def test_weights_that_never_arrive_are_named_with_the_curve(config: RunConfig) -> None:
    table = table_of()
    moved = shifted(table, np.ones(len(table)), 1.0)
    found = found_in(moved, config, curve={1: 0.01, 2: 0.2, 3: 0.5, 4: 0.8})
    assert [cause.name for cause in found] == ["other_weights"]
    assert "it grew from 0.01 at step 1 to 0.8 at step 4" in found[0].evidence[1]
    flat = found_in(moved, config, curve={1: 0.8, 2: 0.8, 3: 0.8, 4: 0.8})
    assert len(flat[0].evidence) == 1


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = write_project(
        tmp_path_factory.mktemp("mismatch"),
        eval__datasets={},
        train__steps=2,
        # Room for a second turn: every byte is a token.
        rollout__max_response_tokens=200,
        rollout__max_context_tokens=300,
    )
    status, text = agentrl(project.parent / "out", "train", project)
    assert status == 0, text
    return project.parent / "runs" / "tiny"


def plant(run: Path, step: int, rollout: str, by: float) -> None:
    """Make the sampler say something else of every token of one rollout."""
    store = TrajectoryStore(run / "trajectories")
    groups = [
        TrajectoryGroup(
            group_id=group.group_id,
            task_id=group.task_id,
            trajectories=tuple(
                replace(
                    row,
                    rollout_log_probs=tuple(
                        value + by * mask
                        for value, mask in zip(
                            row.rollout_log_probs, row.response_mask, strict=True
                        )
                    ),
                )
                if row.rollout_id == rollout
                else row
                for row in group.trajectories
            ),
        )
        for group in stored_groups(store, "train", step)
    ]
    store.write(step, "train", groups)


def test_tokens_of_a_real_run_are_joined_with_their_place(recorded: Path) -> None:
    run = open_recorded(recorded)
    table = read_gaps(run, 1)
    assert table.size.max() < 1e-4
    rows = {row.trajectory.rollout_id: row.trajectory for row in run.store.read("train", step=1)}
    for index in range(len(table)):
        row = rows[table.rollout_ids[table.rollout[index]]]
        at = table.response[index]
        assert row.response_mask[at] == 1
        assert row.response_ids[at] == table.token[index]
        assert row.rollout_log_probs[at] == pytest.approx(table.sampler[index])
        spoken = [turn for turn in row.turns if turn.role == "assistant"]
        turn = spoken[table.turn[index] - 1]
        assert turn.start <= at < turn.end
        assert sum(row.response_mask[turn.start : at + 1]) == table.in_turn[index]
    assert {1, 2} == set(table.turn)


def test_the_command_finds_a_planted_rollout(recorded: Path, tmp_path: Path) -> None:
    status, text = agentrl(tmp_path / "clean", "mismatch", recorded)
    assert status == 0, text
    assert "sampler and trainer agree" in text
    copy = Path(shutil.copytree(recorded, tmp_path / "copy"))
    victim = read_gaps(open_recorded(copy), 2).rollout_ids[0]
    plant(copy, 2, victim, -1.5)
    status, text = agentrl(tmp_path / "planted", "mismatch", copy, "--step", 2)
    assert status == 1, text
    assert "few_rollouts: 1 of" in text
    assert f"worst: {victim}" in text
    status, text = agentrl(tmp_path / "json", "mismatch", copy, "--step", 2, "--json")
    report = json.loads(text.splitlines()[-1])
    assert [cause["name"] for cause in report["causes"]] == ["few_rollouts"]
    assert report["worst"][0]["rollout_id"] == victim
    assert report["worst"][0]["trainer"] - report["worst"][0]["sampler"] == pytest.approx(
        1.5, abs=1e-3
    )


def test_a_run_without_tokens_is_told_so(recorded: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(recorded, tmp_path / "copy"))
    with pytest.raises(RunError, match=r"--step 7: not stored"):
        mismatch(open_recorded(copy), 7)
    for path in (copy / "tokens").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunError, match="holds no readable tokens of step 1"):
        mismatch(open_recorded(copy), 1)
    shutil.rmtree(copy / "tokens")
    with pytest.raises(RunError, match="keeps no tokens of a trained step"):
        mismatch(open_recorded(copy))
