"""Leaving out tasks that are too easy or too hard, or drawing them less, by what was measured.

A pass rate is the mean score of a task over rollouts that can be trusted, whatever weights sampled
them. It comes from a file of `agentrl tasks profile`, from stored trajectories or from a column of
the dataset.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from agentrl.config.schema import DatasetSection, TrainDatasetSection
from agentrl.data.store.columns import unescape
from agentrl.data.store.trajectory_store import TrajectoryStore
from agentrl.data.tasks.pass_rates import (
    PassRate,
    profile_file,
    read_measured,
    task_digest,
    variance_weight,
)
from agentrl.errors import DataError
from agentrl.types import Task
from agentrl.types.solved import ROUNDING

logger = logging.getLogger(__name__)

_COLUMN = "column:"
_PROFILE = "profile"
"""Stands for the file that `agentrl tasks profile` writes for the dataset."""
_COLUMN_N = 8
"""Rollouts that a pass rate in a column is taken to be measured by, where it matters."""


def keep_by_pass_rate(
    tasks: Sequence[Task], section: DatasetSection, *, base: Path | None = None
) -> list[Task]:
    """Tasks whose pass rate lies inside `difficulty.keep`, bounds included, and unmeasured ones.

    Says how many were left out.

    Args:
        tasks: all of the dataset.
        section: says what is kept, and where it was measured.
        base: folder that a relative path starts from; default the working directory.

    Raises:
        DataError: nothing was measured there, no task of this dataset was, a column that is no
            number, or no task is left.
    """
    difficulty = section.difficulty
    if difficulty is None or difficulty.keep is None:
        return list(tasks)
    bounds, source = difficulty.keep, difficulty.source
    rates = {name: rate.mean for name, rate in _known(tasks, section, source, base).items()}
    known = list(rates)
    easy = {name for name in known if rates[name] > bounds[1] + ROUNDING}
    hard = {name for name in known if rates[name] < bounds[0] - ROUNDING}
    kept = [task for task in tasks if task.id not in easy and task.id not in hard]
    said = (
        f"dataset {section.source}: difficulty.keep {list(bounds)} leaves "
        f"{len(easy) + len(hard)} of {len(tasks)} tasks out ({len(easy)} too easy, {len(hard)} too "
        f"hard) and keeps {len(kept)}, {len(tasks) - len(known)} of them not measured in {source}"
    )
    if not kept:
        raise DataError(f"{said}; widen it")
    logger.warning("%s", said)
    return kept


def sampling_weights(
    tasks: Sequence[Task], section: TrainDatasetSection, *, base: Path | None = None
) -> dict[str, float] | None:
    """Weights to draw each task with, up to a common factor; None for equal ones.

    Args:
        tasks: those that are left.
        section: says by what, and where it was measured.
        base: folder that a relative path starts from; default the working directory.

    Raises:
        DataError: as `keep_by_pass_rate`.
    """
    difficulty = section.difficulty
    if difficulty is None or not section.weighs:
        return None
    rates = _known(tasks, section, difficulty.source, base)
    return {task.id: variance_weight(rates.get(task.id)) for task in tasks}


def known_pass_rates(
    tasks: Sequence[Task], section: DatasetSection, *, base: Path | None = None
) -> dict[str, PassRate]:
    """Pass rates of tasks as they are now; empty where no source is named.

    Args:
        tasks: of the dataset.
        section: names where they were measured.
        base: folder that a relative path starts from; default the working directory.

    Raises:
        DataError: as `keep_by_pass_rate`.
    """
    difficulty = section.difficulty
    return {} if difficulty is None else _known(tasks, section, difficulty.source, base)


def _known(
    tasks: Sequence[Task], section: DatasetSection, source: str, base: Path | None
) -> dict[str, PassRate]:
    """What was measured of these tasks, as they are now."""
    if source.startswith(_COLUMN):
        rates = _rates_of_column(tasks, source.removeprefix(_COLUMN))
    elif source == _PROFILE:
        file = profile_file(section, base or Path.cwd())
        if not file.is_file():
            raise DataError(
                f"dataset.difficulty.source is 'profile', but {file} is not there; measure first, "
                "with 'agentrl tasks profile' and this run file"
            )
        rates = measured_pass_rates(file)
    else:
        rates = measured_pass_rates((base or Path.cwd()) / Path(source).expanduser())
    known: dict[str, PassRate] = {}
    changed = 0
    for task in tasks:
        rate = rates.get(task.id)
        if rate is not None and rate.digest not in ("", task_digest(task)):
            changed += 1
        elif rate is not None:
            known[task.id] = rate
    if not known:
        why = f", {changed} of which were other tasks then" if changed else ""
        raise DataError(
            f"dataset.difficulty.source {source!r} holds pass rates of {len(rates)} tasks, but of "
            f"none of the {len(tasks)} tasks of {section.source!r}{why}; ids there are like "
            f"{list(rates)[:3]}, here like {[task.id for task in tasks[:3]]}"
        )
    if changed:
        logger.warning(
            "dataset %s: %d tasks were changed since %s measured them; measure them again",
            section.source,
            changed,
            source,
        )
    return known


def keep_chosen(tasks: Sequence[Task], section: DatasetSection, ids: Collection[str]) -> list[Task]:
    """The tasks that `keep_by_pass_rate` kept when a run began, whatever was measured since.

    Args:
        tasks: all of the dataset.
        section: where they come from.
        ids: of the tasks that were kept.

    Raises:
        DataError: one of them is not in the dataset any more.
    """
    kept = [task for task in tasks if task.id in ids]
    if len(kept) != len(ids):
        gone = sorted(set(ids) - {task.id for task in kept})
        raise DataError(
            f"dataset {section.source}: the run began with {len(ids)} tasks, chosen by pass rate, "
            f"and {len(gone)} of them are gone, as {gone[:3]}; put the dataset back as it was, or "
            "start a new run"
        )
    return kept


def measured_pass_rates(folder: Path) -> Mapping[str, PassRate]:
    """Measured pass rates by the id of the task.

    Args:
        folder: a file that `agentrl tasks profile` wrote; a run directory or what `agentrl eval`
            wrote, of which training rollouts are taken, or the only evaluation; or the folder of
            one kind below its `trajectories`.

    Raises:
        DataError: nothing was measured there, or there are several evaluations.
    """
    if folder.is_file():
        return {
            name: PassRate(mean=item.mean, n=item.n, digest=item.digest)
            for name, item in read_measured(folder).items()
            if item.mean is not None
        }
    root = next(
        (path for path in (folder / "trajectories", folder, *folder.parents) if _is_root(path)),
        None,
    )
    if root is None:
        raise DataError(
            f"dataset.difficulty.source: {folder} holds no trajectories; expected a run directory, "
            "a folder written by 'agentrl eval --out' or 'agentrl rollout --out', or a file "
            "written by 'agentrl tasks profile'"
        )
    store = TrajectoryStore(root)
    scores: dict[str, list[float]] = {}
    columns = ["task_id", "row_index", "score"]
    for row in store.table(columns, _kind(store, folder)).to_pylist():
        if row["row_index"] == 0 and row["score"] is not None and math.isfinite(row["score"]):
            scores.setdefault(unescape(row["task_id"]), []).append(row["score"])
    if not scores:
        raise DataError(f"dataset.difficulty.source: no rollout in {folder} was scored")
    return {
        task: PassRate(mean=math.fsum(values) / len(values), n=len(values))
        for task, values in scores.items()
    }


def _is_root(path: Path) -> bool:
    return path.name == "trajectories" and bool(TrajectoryStore(path).kinds())


def _kind(store: TrajectoryStore, folder: Path) -> str:
    kinds = store.kinds()
    choices = ", ".join(str(store.path(0, kind).parent) for kind in kinds)
    if store.directory in folder.parents:
        named = [kind for kind in kinds if store.path(0, kind).parent == folder]
        if not named:
            raise DataError(
                f"dataset.difficulty.source: {folder} holds no trajectories; there are {choices}"
            )
        return named[0]
    if "train" in kinds or len(kinds) == 1:
        return kinds[0]  # `train` is the first of them
    raise DataError(
        f"dataset.difficulty.source: {folder} holds several evaluations, whose task ids may mean "
        f"different tasks; name one: {choices}"
    )


def _rates_of_column(tasks: Sequence[Task], name: str) -> Mapping[str, PassRate]:
    """By task id; a row where the column is missing or empty was not measured."""
    rates: dict[str, PassRate] = {}
    for task in tasks:
        value = task.metadata.get(name)
        if value is None or value == "":
            continue
        try:
            rate = math.nan if isinstance(value, bool) else float(value)  # cells of CSV are text
        except (TypeError, ValueError):
            rate = math.nan
        if not math.isfinite(rate):
            raise DataError(
                f"task {task.id!r}: column {name!r} is {value!r}, expected a pass rate from 0 to 1"
            )
        rates[task.id] = PassRate(mean=rate, n=_COLUMN_N)
    return rates
