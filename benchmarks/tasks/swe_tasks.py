"""How fast repair tasks are made, how many bugs tests catch, and whether a second look agrees.

    .venv/bin/python benchmarks/tasks/swe_tasks.py --out DIR --count 30

Makes `--count` tasks of each library by itself, with nothing kept from before, then validates all
of them with the runner that grades. Prints, for each library: tests, seconds of a run, changes
tried, the share that the tests catch, why the others make no task, tasks a minute, disagreements
and tests that flip (see `agentrl tasks validate`).
`DIR` must not lie in /tmp, which sandboxes have of their own: the test environment would be copied
into each of them instead of shown, and that is not what is measured here.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import time
from collections import Counter
from pathlib import Path

from agentrl_envs.swe.make import MakeRequest, environment_for, make_tasks
from agentrl_envs.swe.make.validate import validate_tasks
from agentrl_sandboxes import make_backend


class Counted:
    """Progress that counts how changes end."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.tests = 0
        self.seconds = 0.0

    def phase(self, release, what): ...

    def baseline(self, release, license, baseline):
        self.tests, self.seconds = len(baseline.passed), baseline.seconds

    def tried(self, release, reason, made, wanted):
        self.reasons[reason or "task"] += 1

    def refused(self, library, why):
        print(f"{library}: {why}", flush=True)


async def measure(package: str, out: Path, count: int, jobs: int, sandbox: str) -> tuple[int, int]:
    """Make and validate; gives how many tasks, and how many of them do not hold."""
    shutil.rmtree(out, ignore_errors=True)
    request = MakeRequest(out=out, packages=(package,), count=count, jobs=jobs)
    environment = environment_for(request)
    backend = await make_backend(sandbox, read_only=[environment.folder])
    counted = Counted()
    try:
        started = time.perf_counter()
        made = await make_tasks(request, environment, backend, counted)
        took = time.perf_counter() - started
        wrong = flips = 0
        started = time.perf_counter()
        if made.total:
            async for finding in validate_tasks(out, environment, backend, jobs=jobs):
                wrong += bool(finding.disagreements)
                flips += len(finding.flips)
        again = time.perf_counter() - started
    finally:
        await backend.close()
    if not made.total:
        return 0, 0
    tried = sum(counted.reasons.values())
    caught = tried - counted.reasons["not caught"]
    others = {reason: n for reason, n in counted.reasons.items() if reason != "task"}
    print(
        f"{package}: {counted.tests} tests in {counted.seconds:.1f} s; {tried} tried, "
        f"{100 * caught / tried:.0f} % caught, {made.total} tasks in {took:.0f} s = "
        f"{60 * made.total / took:.1f} a minute; validated in {again:.0f} s, {wrong} disagree, "
        f"{flips} tests flip; {others}",
        flush=True,
    )
    return made.total, wrong


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--package", action="append")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--sandbox", default="auto")
    options = parser.parse_args()
    total = wrong = 0
    started = time.perf_counter()
    for package in options.package or ("funcy", "cachetools", "boltons"):
        found = await measure(
            package, options.out / package, options.count, options.jobs, options.sandbox
        )
        total, wrong = total + found[0], wrong + found[1]
    took = time.perf_counter() - started
    print(f"{total} tasks, {wrong} disagree, {took:.0f} s with the second look")


if __name__ == "__main__":
    asyncio.run(main())
