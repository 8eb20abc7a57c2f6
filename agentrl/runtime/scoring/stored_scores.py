"""Scores of evaluations that were stored, to stand beside a new one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.data import TrajectoryStore
from agentrl.data.run.paths import RunPaths
from agentrl.disk.stored_groups import stored_groups
from agentrl.errors import ConfigError
from agentrl.runtime.scores import EvalSummary
from agentrl.runtime.scoring.evaluate import summarise
from agentrl.runtime.stages import report_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyScores:
    """One policy and its scores."""

    policy: str
    """Describes the policy."""
    by_dataset: Mapping[str, EvalSummary]
    """Its score on each dataset."""


def read_scores(folder: Path) -> PolicyScores:
    """The scores in a folder of `agentrl eval`, or the latest ones of a run.

    Raises:
        ConfigError: nothing was scored there.
    """
    store = TrajectoryStore(folder / "trajectories")
    scores: dict[str, EvalSummary] = {}
    for kind in store.kinds():
        if not kind.startswith("eval/"):
            continue
        step = max(store.steps(kind))
        groups = [report_of(group) for group in stored_groups(store, kind, step)]
        name = kind.removeprefix("eval/")
        n = max((len(group.rollouts) for group in groups), default=1)
        scores[name] = summarise(name, step, groups, n_samples=n)
    if not scores:
        raise ConfigError(
            f"{folder} holds no evaluation; expected a folder that agentrl eval wrote, or a run "
            "with eval.datasets"
        )
    return PolicyScores(policy=_policy_of(folder, scores), by_dataset=scores)


def _policy_of(folder: Path, scores: Mapping[str, EvalSummary]) -> str:
    file = RunPaths(folder).evaluation_file
    try:
        return str(json.loads(file.read_bytes())["policy"])
    except FileNotFoundError:
        step = max(item.step for item in scores.values())
        return f"{folder.name}, step {step}"
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{file} cannot be read ({error}); evaluate again, or remove it"
        ) from error
