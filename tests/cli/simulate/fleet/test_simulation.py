"""A whole simulated run: the real driver, client, store and sync, and fake servers."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from statistics import median

import pytest

from agentrl.cli.simulate.fleet.case import GROUP, ScaleCase, run_config
from agentrl.cli.simulate.fleet.conversation import read
from agentrl.cli.simulate.fleet.simulation import simulate_scale
from agentrl.errors import RunError
from tests.cli.simulate.fleet import step_memory
from tests.cli.simulate.fleet.tiny_tokenizer import save_tokenizer


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


def test_conversations_that_make_no_whole_groups_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="12 conversations cannot be divided into groups of 8"):
        run_config(ScaleCase(conversations=12), ["http://127.0.0.1:1"], tmp_path)


def test_a_result_has_at_most_one_token_a_character() -> None:
    # The budget of a result (`max_tool_tokens`) counts on it.
    assert asyncio.run(read(100_000)).isascii()


def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    # Fails if what a step made stays: its rows and batch are 12 MB or more. What is remembered of
    # texts (`KnownIds`) grows by 1 MB a step. The slope is the median of all pairs: malloc moves a
    # single step by 30 MB under load, and the first steps fill pools.
    command = [sys.executable, "-m", step_memory.__name__, str(save_tokenizer(tmp_path))]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[4], capture_output=True, text=True, timeout=800,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tokens"] > 100_000
    held = found["held_bytes"]
    assert len(held) == step_memory.STEPS
    pairs = combinations(enumerate(held[6:]), 2)
    slope = median((after - before) / (j - i) for (i, before), (j, after) in pairs)
    assert slope < 8 * 2**20, held
