"""Agent programs need a sandbox with ports, which a dry run says before the first rollout."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config import parse_config
from agentrl.config.plan import RolloutPlan, plan_run
from agentrl.env import Action, ModelEndpoint, Observation, PlayedProgram, ProgramEnv, StepResult
from agentrl.errors import SandboxUnavailable
from agentrl.gateway.program import ProgramAgent
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.preflight.checks.parts import sandbox
from agentrl.types import Task

WALLED = """
import types
from agentrl.sandbox import Sandbox
from agentrl_sandboxes import ProcessBackend

class Walled(ProcessBackend):
    async def create(self, *given, **named):
        made = await super().create(*given, **named)
        made.listen = types.MethodType(Sandbox.listen, made)
        return made
"""


class PlaysNothing(ProgramEnv):
    async def reset(self, task: Task) -> Observation:
        return Observation(content="")

    async def play(self, endpoint: ModelEndpoint) -> PlayedProgram:
        return PlayedProgram()

    async def step(self, action: Action) -> StepResult:
        return StepResult(done=True)


def rollouts_in(folder: Path, backend: str) -> RolloutPlan:
    sections = {
        "model": {"path": "quickstart"},
        "env": {"target": "nothing:Here"},
        "dataset": {"source": "nothing.jsonl"},
        "sandbox": {"backend": backend},
    }
    return plan_run(parse_config(sections), folder).rollouts


async def test_a_backend_without_ports_is_refused_for_programs_alone(tmp_path: Path) -> None:
    (tmp_path / "walled.py").write_text(WALLED)
    walled = rollouts_in(tmp_path, "walled.py:Walled")
    facts = PreflightFacts(make_env=lambda: ProgramAgent(PlaysNothing()))
    with pytest.raises(
        SandboxUnavailable, match=r"Sandbox\.listen.*docker, kubernetes, bubblewrap"
    ):
        await sandbox(walled, facts)
    await sandbox(walled, PreflightFacts())
    await sandbox(rollouts_in(tmp_path, "process"), facts)
