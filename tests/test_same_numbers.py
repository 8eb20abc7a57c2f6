"""A few of the seeded runs of `benchmarks/same_numbers.py`, held to the numbers in its file."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from number_cases import Made, all_cases
from same_numbers import FILE, check, entry_of, machine, numbers_of, wrong_numbers


@pytest.fixture(scope="module")
def file() -> dict[str, Any]:
    return json.loads(FILE.read_text())


def test_the_file_has_every_case(file: dict[str, Any]) -> None:
    assert file["cases"].keys() == all_cases().keys()


@pytest.mark.parametrize(
    "name",
    [
        "driver: synchronous",
        "driver: asynchronous, partial rollouts",
        "driver: tail batching",
        "preset: grpo",
    ],
)
def test_numbers_are_those_on_file(tmp_path: Path, file: dict[str, Any], name: str) -> None:
    """Fails if, for example, a loss is divided by one rollout too many (all four cases), or if a
    group's standard deviation is divided by n and not by n - 1 (the preset); both were tried."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        made = all_cases()[name].run(tmp_path)
    finally:
        torch.set_num_threads(threads)
    recorded = file["cases"][name]["numbers"]
    assert wrong_numbers(recorded, numbers_of(made), file["tolerance"]) == []


def test_a_difference_is_found(file: dict[str, Any]) -> None:
    made = Made(
        before={"w": torch.zeros(2)},
        weights={"w": torch.ones(2)},
        metrics=[{"step": 1, "timing_s/step": 0.5, "reward": 0.25}],
        rollouts=[],
    )
    now, here = entry_of(made), {**file, "machine": machine()}
    assert check(now, now, here) == []
    # What a checkpoint took is on a line of its own, and made by a clock alone.
    made.metrics.append({"step": 1, "time": 9.0, "timing_s/checkpoint": 0.1})
    assert check(now, entry_of(made), here) == []
    assert check({**now, "weights": "0"}, now, here) == ["weights differ"]
    slower = replace(made, metrics=[{"step": 1, "timing_s/step": 0.9, "reward": 0.25}])
    assert check(now, entry_of(slower), here) == []
    off = {**now, "numbers": {**now["numbers"], "weights/moved": 1.0}}
    assert len(check(off, now, {**file, "machine": {}})) == 1
    assert check({**now, "weights": "0"}, now, {**file, "machine": {}}) == []
