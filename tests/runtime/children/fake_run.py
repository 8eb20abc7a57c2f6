"""Rollout workers in child processes over fake servers; run as a program, a parent that waits."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from agentrl.chat import build_chat
from agentrl.cli.simulate.fleet.case import GROUP, ScaleCase, run_config
from agentrl.cli.simulate.fleet.conversation import call_of
from agentrl.cli.simulate.fleet.fake_fleet import fake_fleet
from agentrl.cli.simulate.fleet.fake_servers import FakeTurn
from agentrl.config import RunConfig
from agentrl.config.plan import plan_run
from agentrl.config.schema import ModelSection
from agentrl.models.source import load_tokenizer
from agentrl.runtime.assembly.engines import UNKNOWN_VERSION, OpenEngines, open_engines
from agentrl.runtime.children.open_workers import OpenWorkers, open_workers
from agentrl.types import SamplingParams, Task
from tests.cli.simulate.fleet.tiny_tokenizer import save_tokenizer

TASK = Task(id="t", prompt="Read it.")
SAMPLING = SamplingParams(max_tokens=256)
TURNS = 3


@contextlib.asynccontextmanager
async def running_workers(
    folder: Path, *, workers: int, turn_s: float
) -> AsyncIterator[tuple[OpenWorkers, OpenEngines]]:
    """Workers over two fake servers, opened as a run opens them."""
    tokenizer = str(save_tokenizer(folder / "model"))
    case = ScaleCase(
        servers=2, conversations=GROUP, turns=TURNS, turn_s=turn_s, result_chars=50,
        workers=workers, tokenizer=tokenizer,
    )  # fmt: skip
    turn = make_turn(case, folder)
    with fake_fleet(2, turn, conversations=GROUP) as fakes:
        config = run_config(case, fakes.urls, folder)
        plan = plan_run(config, folder)
        async with (
            opened_engines(config, folder) as engines,
            open_workers(
                plan.with_model(tokenizer).rollouts,
                plan.engines,
                logs=folder / "logs",
                engines=engines,
                tokenizer=load_tokenizer(ModelSection(path=tokenizer)),
                version=UNKNOWN_VERSION,
            ) as opened,
        ):
            yield opened, engines


def make_turn(case: ScaleCase, folder: Path) -> FakeTurn:
    """The turn that the fake servers of a case sample."""
    config = run_config(case, ["http://127.0.0.1:1"], folder)
    chat = build_chat(load_tokenizer(ModelSection(path=case.tokenizer)), config.chat)
    ids = [*chat.encode_plain(call_of(case.result_chars)), chat.stop_token_ids[0]]
    context = config.rollout.max_context_tokens
    return FakeTurn(seconds=case.turn_s, ids=ids, max_context_tokens=context)


@contextlib.asynccontextmanager
async def opened_engines(config: RunConfig, folder: Path) -> AsyncIterator[OpenEngines]:
    """The driver's own connections."""
    async with open_engines(
        config.serving,
        config.sync,
        config.model,
        max_context_tokens=config.rollout.max_context_tokens,
        wait_s=0.0,
        model=None,
        source="",
        logs=folder,
        version=UNKNOWN_VERSION,
        note=lambda line: None,
    ) as engines:
        yield engines


async def main(folder: Path) -> None:
    """Print a line `pids` with those of two workers, and wait."""
    async with running_workers(folder, workers=2, turn_s=600.0) as (opened, _):
        running = asyncio.create_task(
            opened.rollouts.run_group(TASK, group_id="g", n=GROUP, sampling=SAMPLING, seed=0)
        )
        # Libraries print lines of their own.
        sys.stdout.write(" ".join(["pids", *map(str, opened.workers.pids)]) + "\n")
        sys.stdout.flush()
        await running


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
