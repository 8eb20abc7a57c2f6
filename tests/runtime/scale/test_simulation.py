"""A whole simulated run: the real driver, client, store and sync, and fake servers."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from agentrl.errors import RunError
from agentrl.runtime.scale.case import GROUP, ScaleCase
from agentrl.runtime.scale.simulation import simulate_scale
from tests.runtime.scale.tiny_tokenizer import save_tokenizer


def children() -> set[str]:
    """Process ids of the children of this process."""
    tasks = Path("/proc/self/task").iterdir()
    return {pid for task in tasks for pid in (task / "children").read_text().split()}


@pytest.mark.parametrize("workers", [0, 2])
async def test_every_turn_of_every_step_reaches_the_servers_and_the_store(
    tmp_path: Path, workers: int
) -> None:
    # Fails if the driver keeps a conversation from its turns, or the servers answer another one.
    case = ScaleCase(
        servers=4,
        conversations=2 * GROUP,
        turns=3,
        turn_s=0.05,
        result_chars=500,
        steps=2,
        workers=workers,
        tokenizer=str(save_tokenizer(tmp_path)),
    )
    before = children()  # such as a tracker of multiprocessing that an earlier test has started
    report = await simulate_scale(case)
    assert report.failed == {}
    assert report.turns == 2 * GROUP * 3 * 2
    # Two of three results are in front of a turn, one id a character.
    assert report.tokens > 2 * GROUP * 2 * 500 * 2
    assert report.store_bytes > 0
    assert report.rollout.wall_s > report.ideal_s
    assert report.rollout.cpu_s > 0
    assert report.sync.wall_s > 0
    assert len(report.resident_bytes) == case.steps
    assert children() <= before


async def test_a_limit_of_open_files_is_named_before_anything_starts() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(RunError, match=r"needs \d+ open files"):
        await simulate_scale(ScaleCase(conversations=2**31))
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == hard


async def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    # Fails if the tokens of the last ten steps stay: they are 85 MB as tuples.
    case = ScaleCase(
        servers=2,
        conversations=2 * GROUP,
        turns=4,
        turn_s=0.01,
        result_chars=2000,
        steps=20,
        tokenizer=str(save_tokenizer(tmp_path)),
    )
    report = await simulate_scale(case)
    assert report.tokens / case.steps > 100_000
    grown = report.resident_bytes[-1] - report.resident_bytes[9]
    assert grown < 40 * 2**20, report.resident_bytes
