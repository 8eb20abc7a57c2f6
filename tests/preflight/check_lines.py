"""Runs the checks of a preflight in this process, one after the other."""

from __future__ import annotations

from pathlib import Path

from agentrl.config import RunConfig
from agentrl.config.plan import plan_run
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.preflight.plan import dry_run_plan
from agentrl.preflight.runner import CheckPlan, outcome_of
from agentrl.types.finding import Finding


async def lines_of(plan: CheckPlan) -> dict[str, Finding]:
    """The line of every check by its name."""
    return {name: await outcome_of(name, check) for name, check in plan.steps}


async def dry_run(config: RunConfig, base: Path, *, resume: bool = False) -> dict[str, Finding]:
    """The lines of `agentrl train --dry-run`."""
    run = plan_run(config, base)
    return await lines_of(dry_run_plan(run, found=PreflightFacts(), resume=resume))
