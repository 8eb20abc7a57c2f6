"""Tries of a run that loses trainer ranks: counted in a row, and ended by a step."""

from pathlib import Path
from typing import Any, cast

import pytest

from agentrl.config import RunConfig, parse_config
from agentrl.data import TrajectoryStore
from agentrl.runtime.rank_restarts import RankLost, RankRestarts


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
    return RankRestarts(config, cast(TrajectoryStore, stored))


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


def test_no_try_is_made_where_none_is_asked_for(tmp_path: Path) -> None:
    for runtime in ({"kind": "ray", "rank_restarts": 0}, "local"):
        with pytest.raises(RankLost, match="--resume"):
            restarts(tmp_path, Stored(), runtime).after(RankLost("gone"))
