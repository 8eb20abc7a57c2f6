"""Processor time of sandboxes: started for every rollout, and wiped between rollouts.

    .venv/bin/python benchmarks/sandboxes/reuse.py
    .venv/bin/python benchmarks/sandboxes/reuse.py --backend userns --rollouts 256

A rollout opens a sandbox, tests one solution of a code task in it and closes it, sixteen at once.
Counted is the processor time of this process and of all processes that it has waited for; the
lowest of the repeats.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
from collections.abc import Awaitable, Callable

from agentrl_envs.code import make_tasks
from agentrl_envs.code.env import problem_of
from agentrl_envs.code.runner import run_solution
from agentrl_sandboxes import PooledBackend, make_backend

from agentrl.sandbox import SandboxBackend, SandboxLimits, SandboxSpec

LIMITS = SandboxLimits()
AT_ONCE = 16
TASK = make_tasks(n=1)[0]


def processor_ms() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return 1e3 * sum(usage.ru_utime + usage.ru_stime for usage in used)


async def start_and_close(backend: SandboxBackend, count: int) -> None:
    for _ in range(count):
        await (await backend.create(LIMITS)).close()


async def wipe(backend: SandboxBackend, count: int) -> None:
    sandbox = await backend.create(LIMITS)
    for _ in range(count):
        await sandbox.reset()
    # Only an ended process has been waited for.
    await sandbox.close()


def rollouts(max_uses: int) -> Callable[[SandboxBackend, int], Awaitable[None]]:
    async def run(backend: SandboxBackend, count: int) -> None:
        pool = PooledBackend(backend, max_uses=max_uses, starts_at_once=AT_ONCE)
        turns = asyncio.Semaphore(AT_ONCE)

        async def rollout() -> None:
            async with turns:
                sandbox = await pool.take(SandboxSpec(), LIMITS)
                code = TASK.metadata["reference"]
                report = await run_solution(sandbox, code, problem_of(TASK), wall_s=5.0)
                assert report.solved
                await sandbox.close()

        await asyncio.gather(*(rollout() for _ in range(count)))
        await pool.close()

    return run


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--rollouts", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    work = {
        "start and close": start_and_close,
        "wipe": wipe,
        "rollout, a sandbox each": rollouts(1),
        "rollout, wiped sandboxes": rollouts(64),
    }
    for name, run in work.items():
        found = []
        for _ in range(args.repeats):
            backend = await make_backend(args.backend)
            began = processor_ms()
            await run(backend, args.rollouts)
            await backend.close()
            found.append((processor_ms() - began) / args.rollouts)
        every = ", ".join(f"{value:.1f}" for value in found)
        print(f"{name:26} {min(found):6.1f} ms of a processor ({every})")


if __name__ == "__main__":
    asyncio.run(main())
