"""Which tasks a run began with, and how often each comes, where pass rates that may change since
said so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.config.paths import PathStart, absolute_paths
from agentrl.config.plan import TaskPlan
from agentrl.config.schema import DatasetSection, RunConfig
from agentrl.config.stored import translate
from agentrl.errors import RunError
from agentrl.machine.files import write_whole
from agentrl.runtime.assembly.parts import TRAIN, Chosen, TaskSets, eval_name


def write_chosen(path: Path, datasets: Mapping[str, DatasetSection], tasks: TaskSets) -> None:
    """Keep ids and weights of all datasets that pass rates decide on; no file if there is none.

    Args:
        path: the file.
        datasets: all of the config; see `dataset_sections`.
        tasks: what it trains and is scored on.
    """
    sets = {TRAIN: tasks.train, **{eval_name(k): v for k, v in tasks.evals.items()}}
    document = {
        name: {
            "section": _document(section),
            "ids": [task.id for task in sets[name]],
            "weights": dict(tasks.weights) if name == TRAIN and tasks.weights else None,
        }
        for name, section in _by_pass_rate(datasets).items()
    }
    if document:
        write_whole(path, json.dumps(document).encode())


def read_chosen(
    path: Path, datasets: Mapping[str, DatasetSection], *, base: Path
) -> Mapping[str, Chosen]:
    """The choice by dataset, of those whose section is still the one that the ids were chosen by.

    Args:
        path: the file.
        datasets: all of the config.
        base: where relative paths of the sections in the file start.

    Raises:
        RunError: the file cannot be read.
    """
    if not path.is_file():
        return {}
    today = partial(_of_today, base=base)
    try:
        kept = json.loads(path.read_bytes())
        return {
            name: Chosen(ids=tuple(kept[name]["ids"]), weights=kept[name].get("weights"))
            for name, section in _by_pass_rate(datasets).items()
            if name in kept and today(kept[name]["section"]) == today(_document(section))
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{path} cannot be read ({type(error).__name__}: {error}); without it the tasks are "
            "chosen again by what dataset.difficulty holds now: delete it if that is unchanged"
        ) from error


def dataset_sections(plan: TaskPlan) -> dict[str, DatasetSection]:
    """All datasets of a config by the name that they have there."""
    return {TRAIN: plan.dataset, **{eval_name(name): part for name, part in plan.evals.items()}}


def _by_pass_rate(datasets: Mapping[str, DatasetSection]) -> dict[str, DatasetSection]:
    return {name: section for name, section in datasets.items() if section.difficulty}


def _of_today(kept: dict[str, Any], base: Path) -> dict[str, Any]:
    """A section that any version has written out, with the keys and absolute paths of today."""
    start = PathStart(base=base, no_file=True)
    return absolute_paths(translate({"dataset": kept}), RunConfig, start)["dataset"]


def _document(section: DatasetSection) -> dict[str, Any]:
    return section.model_dump(mode="json", exclude_defaults=True)
