"""Scores of a policy that is being fitted, by rolling it out: pass@k decides, not the loss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentrl.config import load_config, parse_config
from agentrl.config.fit import RolloutEval
from agentrl.config.plan import Plan, plan_run
from agentrl.machine.processes.stop import StopSwitch
from agentrl.runtime.progress import Progress
from agentrl.runtime.sampling.sample import score_policy


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


async def rollout_scores(
    section: RolloutEval,
    *,
    base: Path,
    model_path: str,
    run_dir: Path,
    step: int,
    progress: Progress,
    stop: StopSwitch,
) -> Mapping[str, float]:
    """Roll a checkpoint out on the held-out tasks of a run file.

    Args:
        section: which file, how often.
        base: folder that relative paths of the fit file start from.
        model_path: the checkpoint.
        run_dir: gets the trajectories, as `eval/NAME` of this step.
        step: steps done.
        progress: notified of rollouts.
        stop: ends it.

    Returns:
        `eval/NAME/score`, `eval/NAME/pass@k` and what else an evaluation of a run gives.

    Raises:
        AgentrlError: anything that does not fit, or not one rollout could be scored.
        Interrupted: `stop` was asked to stop.
    """
    summaries = await score_policy(
        rollout_plan(section, base=base),
        model_path=model_path,
        out=run_dir,
        step=step,
        progress=progress,
        stop=stop,
    )
    return {key: value for found in summaries for key, value in found.metrics().items()}
