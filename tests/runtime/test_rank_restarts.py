"""Tries of a run that loses trainer ranks: counted in a row, and ended by a step."""

from pathlib import Path
from typing import Any, cast

import pytest

from agentrl.config import RunConfig, parse_config
from agentrl.data import TrajectoryStore
from agentrl.runtime.rank_restarts import RankLost, RankLostAtStart, RankRestarts


class Stored:
    """Stands for a store: the steps that were rolled out."""

    def __init__(self) -> None:
        self.last = 0

    def steps(self, kind: str) -> list[int]:
        assert kind == "train"
        return list(range(1, self.last + 1))


def restarts(tmp_path: Path, stored: Stored, runtime: Any) -> RankRestarts:
    config: RunConfig = parse_config(
        {
            "run": {"dir": str(tmp_path)},
            "env": {"target": "x:Y"},
            "dataset": {"source": "x.jsonl"},
            "runtime": runtime,
        }
    )
    return RankRestarts(config.runtime, cast(TrajectoryStore, stored))


def test_a_row_of_tries_ends_with_a_step_and_with_the_number_of_the_config(tmp_path: Path) -> None:
    """Fails if a run that loses a rank now and then runs out of tries, or one that makes no step
    goes on for ever."""
    stored = Stored()
    tries = restarts(tmp_path, stored, {"kind": "ray", "rank_restarts": 2})
    lost = RankLost("trainer rank 1 is gone: killed")
    for step in range(1, 8):
        stored.last = step
        assert "(try 1 of 2)" in tries.after(lost)
    assert "(try 2 of 2)" in tries.after(lost)
    with pytest.raises(RankLost, match=r"rank 1 is gone.*2 of 2 .*rank_restarts.*--resume") as end:
        tries.after(lost)
    assert end.value.__cause__ is lost


def test_a_rank_that_dies_at_the_start_costs_a_try_only_after_a_loss(tmp_path: Path) -> None:
    """Fails if a machine that is short of something ends a run that has tries left, or if a model
    that fits nowhere is loaded again and again."""
    stored = Stored()
    tries = restarts(tmp_path, stored, {"kind": "ray", "rank_restarts": 2})
    lost = RankLostAtStart("trainer rank 1 is gone: killed; it died while the run started")
    with pytest.raises(RankLostAtStart) as first:
        tries.after(lost)
    assert first.value is lost
    stored.last = 3
    assert "(try 1 of 2)" in tries.after(RankLost("trainer rank 1 is gone"))
    assert "(try 2 of 2)" in tries.after(lost)
    with pytest.raises(RankLost, match=r"2 of 2 .*rank_restarts"):
        tries.after(lost)


def test_steps_that_come_again_after_a_rollback_end_a_row(tmp_path: Path) -> None:
    """Fails if a run that went back has to get as far as it was before it has its tries again."""
    stored = Stored()
    tries = restarts(tmp_path, stored, {"kind": "ray", "rank_restarts": 1})
    for stored.last in (8, 2, 3, 4):
        assert "(try 1 of 1)" in tries.after(RankLost("trainer rank 1 is gone"))


def test_no_try_is_made_where_none_is_asked_for(tmp_path: Path) -> None:
    for runtime in ({"kind": "ray", "rank_restarts": 0}, "local"):
        with pytest.raises(RankLost, match="--resume"):
            restarts(tmp_path, Stored(), runtime).after(RankLost("gone"))
