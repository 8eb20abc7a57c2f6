"""Scores of a policy that is being fitted, by rolling it out: pass@k decides, not the loss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from agentrl.config import load_config, parse_config
from agentrl.config.fit import RolloutEval
from agentrl.config.plan import Plan, plan_run
from agentrl.machine.processes.stop import StopSwitch


class CheckpointScorer(Protocol):
    """Rolls checkpoints of a fit out on the held-out tasks of a run; a fit does not know how."""

    def check(self, plan: Plan) -> None:
        """Refuse what does not resolve, before anything is loaded.

        Raises:
            AgentrlError: the first thing that does not.
        """
        ...

    async def score(
        self, plan: Plan, *, model_path: str, run_dir: Path, step: int, stop: StopSwitch
    ) -> Mapping[str, float]:
        """Roll a checkpoint out on the held-out tasks of a run file.

        Args:
            plan: of the run file, by `rollout_plan`.
            model_path: the checkpoint.
            run_dir: gets the trajectories, as `eval/NAME` of this step.
            step: steps done.
            stop: ends it.

        Returns:
            `eval/NAME/score`, `eval/NAME/pass@k` and what else an evaluation of a run gives.

        Raises:
            AgentrlError: anything that does not fit, or not one rollout could be scored.
            Interrupted: `stop` was asked to stop.
        """
        ...


def rollout_plan(section: RolloutEval, *, base: Path) -> Plan:
    """The plan of the run file, narrowed to what the section asks for.

    Raises:
        ConfigError: the file cannot be used, or has no `eval.datasets`.
    """
    path = Path(section.config).expanduser()
    path = path if path.is_absolute() else base / path
    data = load_config(path).model_dump(mode="json")
    data["train"]["steps"] = 0
    if section.n_samples is not None:
        data["eval"]["n_samples"] = section.n_samples
    if section.limit is not None:
        for dataset in data["eval"]["datasets"].values():
            dataset["limit"] = section.limit
    config = parse_config(data, where=f"eval.rollouts.config ({path})")
    return plan_run(config, path.parent)
