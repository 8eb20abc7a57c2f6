"""Reads a run directory into a `History`: what detectors look at, and nothing of it executed.

The directory may be growing, copied, torn, of another version or written to do harm. So nothing
here takes a lock or writes, sizes are bounded, and whatever cannot be read becomes a note.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from agentrl.config.base import Section
from agentrl.config.fit import FitConfig
from agentrl.config.keys import dotted, plain_location
from agentrl.config.load import FIT_FILE, is_fit_run, load_stored_config
from agentrl.config.plan import flat_config
from agentrl.config.schema import RunConfig
from agentrl.config.stored import translate
from agentrl.data.run.paths import RunPaths
from agentrl.data.run.read import read_object, require_run
from agentrl.errors import ConfigError
from agentrl.health.records import LARGEST, History, RolloutFacts, Series
from agentrl.health.rollouts import read_rollouts
from agentrl.machine.files import require_plain
from agentrl.metrics import read_metrics

_LARGEST = 1e300
"""No threshold is so large; an integer beyond cannot become a float."""
_CONFIG_BYTES = 2**18
_CONFIG_EVENTS = 20_000
_CONFIG_DEPTH = 40


def read_history(run_dir: Path, *, rollouts_per_step: int = 64) -> History:
    """All that detectors need of a run, read leniently.

    Args:
        run_dir: a run directory, whatever state it is in; nothing is written.
        rollouts_per_step: bounds the rollouts read of each of the sampled steps; 0 reads none,
            which is fast however large the run is.

    Raises:
        RunError: it is no directory, or holds neither metrics nor a config nor trajectories.
    """
    require_run(Path(run_dir))
    paths = RunPaths(Path(run_dir))
    notes: list[str] = []
    evaluated = read_object(paths.evaluation_file)
    if evaluated:  # `agentrl eval` trains nothing, so it writes neither curves nor a config
        metrics, not_finite = series_of(_scores(evaluated))
    else:
        metrics, not_finite = read_series(paths.metrics_file, notes)
    rollouts: Sequence[RolloutFacts] = ()
    if rollouts_per_step > 0:
        rollouts = read_rollouts(paths.trajectories, rollouts_per_step, notes)
    return History(
        metrics=metrics,
        rollouts=rollouts,
        config={} if evaluated else read_config(paths.config_file, notes),
        not_finite=not_finite,
        notes=tuple(notes),
    )


def read_series(
    path: Path, notes: list[str]
) -> tuple[dict[str, Series], dict[str, tuple[int, ...]]]:
    """The curves of a metrics file, and where they were not finite; a later line wins.

    Args:
        path: `metrics.jsonl`; may be missing or torn.
        notes: what went wrong is added here.
    """
    values: dict[str, dict[int, float]] = {}
    for step, name, value in _values(path, notes):
        values.setdefault(name, {})[step] = value
    return series_of(values)


def series_of(
    values: Mapping[str, Mapping[int, float]],
) -> tuple[dict[str, Series], dict[str, tuple[int, ...]]]:
    """Curves from step to value, and the steps at which each was not finite, or beyond `LARGEST`.

    Example:
        >>> curves, broken = series_of({"reward": {2: 0.5, 1: 0.25, 3: float("nan")}})
        >>> curves["reward"].values, broken
        ((0.25, 0.5), {'reward': (3,)})
    """
    curves: dict[str, Series] = {}
    broken: dict[str, tuple[int, ...]] = {}
    for name, by_step in values.items():
        known = sorted((step, value) for step, value in by_step.items() if abs(value) <= LARGEST)
        if known:
            steps, numbers = zip(*known, strict=True)
            curves[name] = Series(steps=steps, values=numbers)
        if len(known) < len(by_step):
            lost = (step for step, value in by_step.items() if not abs(value) <= LARGEST)
            broken[name] = tuple(sorted(lost))
    return curves, broken


def read_config(path: Path, notes: list[str]) -> dict[str, Any]:
    """The run's config as dotted keys with the algorithm resolved.

    A config that this version does not accept gives its keys as they stand in the file.
    """
    try:
        require_plain(path)
        if trouble := _trouble(path):
            notes.append(f"{path.name} was not read: {trouble}")
            return {}
        return _finite_thresholds(flat_config(load_stored_config(path)), notes)
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {error.strerror or error}")
        return {}
    except ConfigError as error:
        if is_fit_run(path):
            notes.append(
                "a run of `agentrl fit`: nothing is rolled out, so only its curves are judged"
            )
            return _fit_config(path, notes)
        first = " ".join(line.strip() for line in str(error).splitlines()[:2])
        notes.append(f"config.yaml is not one of this version of agentrl: {first}")
    return _plain_config(path, notes)


def _fit_config(path: Path, notes: list[str]) -> dict[str, Any]:
    """The keys of a fit with their defaults; as they stand in a file of another version."""
    try:
        return dotted(FIT_FILE.load_stored(path).model_dump(mode="json"))
    except ConfigError as error:
        first = " ".join(line.strip() for line in str(error).splitlines()[:2])
        notes.append(f"config.yaml is not one of this version of agentrl: {first}")
        return _plain_config(path, notes, root=FitConfig)


def _plain_config(
    path: Path, notes: list[str], *, root: type[Section] = RunConfig
) -> dict[str, Any]:
    """The keys as they stand in the file."""
    try:
        data = yaml.safe_load(path.read_bytes())
    except (OSError, yaml.YAMLError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    data = translate(data, root)
    refused = _refused(data, root)
    kept = {key: value for key, value in dotted(data).items() if key not in refused}
    return _finite_thresholds(kept, notes)


def _finite_thresholds(config: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Without thresholds that nothing can be compared with."""
    found = dict(config)
    for key, value in config.items():
        if not key.startswith("health.thresholds.") or not isinstance(value, int | float):
            continue
        if not -_LARGEST < value < _LARGEST:  # NaN is neither
            del found[key]
            notes.append(f"{key} is {str(value)[:20]} in config.yaml; its default is taken instead")
    return found


def _refused(data: Mapping[Any, Any], root: type[Section]) -> set[str]:
    """Dotted keys whose value this version cannot take: detectors and levers compute with them."""
    try:
        root.model_validate(data)
    except ValidationError as error:
        wrong = [
            plain_location(item["loc"], root)
            for item in error.errors()
            if item["type"] != "extra_forbidden"
        ]
    else:
        return set()
    found: set[str] = set()
    for location in wrong:
        node: Any = data
        names: list[str] = []
        for part in location:
            if not isinstance(node, Mapping) or part not in node:
                break
            node = node[part]
            names.append(str(part))
        found.add(".".join(names))
    return found


def _trouble(path: Path) -> str:
    """Reason why agentrl did not write a file, found without building anything from it.

    A few lines of YAML can nest without end, or name one mapping a million times.
    """
    size = path.stat().st_size
    if size > _CONFIG_BYTES:
        return f"it has {size} bytes, and a config has a few thousand"
    depth = count = 0
    try:
        for event in yaml.parse(
            path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", None) or yaml.SafeLoader
        ):
            count += 1
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent):
                return "it uses YAML aliases, which a config that agentrl wrote never does"
            if depth > _CONFIG_DEPTH or count > _CONFIG_EVENTS:
                return "it is nested too deeply or too long to be a config"
    except (yaml.YAMLError, ValueError) as error:
        return f"it is not YAML: {str(error).splitlines()[0]}"
    return ""


def _scores(evaluated: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """The metrics of an evaluation, each at step 0, where its rollouts stand."""
    records = evaluated.get("scores")
    return {
        name: {0: number}
        for record in (records if isinstance(records, list) else ())
        for name, value in (record.items() if isinstance(record, dict) else ())
        if (number := _number(value)) is not None
    }


def _values(path: Path, notes: list[str]) -> Iterator[tuple[int, str, float]]:
    torn = itertools.count()
    try:
        for record in read_metrics(path, torn=lambda: next(torn)):
            for name, value in record.items():
                number = _number(value)
                if number is not None and name not in ("step", "time"):
                    yield record["step"], name, number
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {error.strerror or error}")
    if lines := next(torn):
        notes.append(f"{path.name}: left out {lines} lines that are torn or not ours")


def _number(value: Any) -> float | None:
    """None for what is no number; NaN for null, which is how a NaN is written."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
