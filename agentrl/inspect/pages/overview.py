"""The list of runs, and the first screen of one: curves, bands, verdicts, time and waste."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from agentrl.data.run.paths import RunPaths
from agentrl.data.run.read import read_object, read_objects
from agentrl.finding import Status
from agentrl.health import DASHBOARD, FIT_DASHBOARD, Series, Verdict
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import pause_of, run_state
from agentrl.inspect.read.safe_json import number, shown
from agentrl.metrics import find_metric

_MOST_BYTES = 2**20
"""Read of the journal's end."""
_MOST_EVENTS = 500


def run_entry(reader: RunReader) -> dict[str, Any]:
    """One line of the list of runs; verdicts are null until they are known.

    Raises:
        RunError: the directory is gone.
    """
    path = reader.path
    known = reader.known_health()
    history = reader.curves()
    curves, config = history.metrics, history.config
    identity = reader.identity()
    score, before, after = _scores(curves, config)
    worst = None
    if known:
        worst = {
            str(status): sum(verdict.status is status for verdict in known.verdicts)
            for status in (Status.WARN, Status.FAIL)
        }
    return {
        "id": reader.run.id,
        "name": reader.run.name,
        "path": shown(str(path)),
        "state": run_state(path),
        "steps": _last_step(curves),
        "planned_steps": _planned(config),
        "started": _moment(identity.get("written")),
        "model": shown(str(identity.get("model") or config.get("model.path") or "")),
        "score": shown(score),
        "score_before": before,
        "score_after": after,
        "verdicts": worst,
        "notes": list(history.notes),
    }


def run_overview(reader: RunReader) -> dict[str, Any]:
    """Everything the first screen of a run shows.

    Raises:
        RunError: the directory is gone.
    """
    revision = reader.revision()
    health = reader.health()
    curves = health.history.metrics
    notes = [*health.history.notes]
    return {
        "id": reader.run.id,
        "name": reader.run.name,
        "path": shown(str(reader.path)),
        "state": run_state(reader.path),
        "paused": _pause(reader.path),
        "planned_steps": _planned(health.history.config),
        "config": {shown(k): _plain(v) for k, v in sorted(health.history.config.items())},
        "metrics": {shown(name): _curve(curve) for name, curve in curves.items()},
        "meanings": _meanings(curves),
        "dashboard": _dashboard(curves, health.history.config),
        "verdicts": [verdict_json(verdict) for verdict in health.verdicts],
        "events": _events(reader.path, health.verdicts, notes),
        "timing": _below(curves, "timing_s/", but=("elapsed",)),
        "waste": {what: _below(curves, f"waste/{what}/") for what in ("tokens", "seconds")},
        "evals": _evals(curves, health.history.config),
        "examples": reader.examples.steps(),
        "result": _result(reader.path),
        "notes": notes,
        "revision": revision,
    }


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON: its fields by name."""
    record = verdict.as_dict()
    for lever in record["levers"]:
        lever["value"] = _plain(lever["value"])
    return record


def _curve(curve: Series) -> dict[str, Any]:
    return {"steps": curve.steps, "values": curve.values}


def _meanings(curves: Mapping[str, Series]) -> dict[str, dict[str, str]]:
    """What the catalog says of each metric that it knows."""
    known = ((name, find_metric(name)) for name in curves)
    return {
        shown(name): {"meaning": entry.meaning, "unit": entry.unit}
        for name, entry in known
        if entry is not None
    }


def _below(
    curves: Mapping[str, Series], prefix: str, but: tuple[str, ...] = ()
) -> dict[str, dict[str, Any]]:
    names = (name for name in curves if name.startswith(prefix))
    return {
        shown(name.removeprefix(prefix)): _curve(curves[name])
        for name in names
        if name.removeprefix(prefix) not in but
    }


def _is_fit(config: Mapping[str, Any]) -> bool:
    return any(key.startswith("objective.") for key in config)


def _dashboard(curves: Mapping[str, Series], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Bands in order; one that stands for several curves is given once for each."""
    found: list[dict[str, Any]] = []
    for band in FIT_DASHBOARD if _is_fit(config) else DASHBOARD:
        names = [band.metric]
        if "*" in band.metric:
            names = [name for name in curves if fnmatchcase(name, band.metric)] or names
        for name in names:
            record = dataclasses.asdict(band)
            if name != band.metric:
                fixed = band.metric.split("*")
                stood_for = name.removeprefix(fixed[0]).removesuffix(fixed[-1])
                record |= {"metric": shown(name), "label": f"{band.label}: {shown(stood_for)}"}
            found.append(record)
    return found


def _score_metrics(curves: Mapping[str, Series], config: Mapping[str, Any]) -> dict[str, str]:
    """Name of each evaluation to the metric that is its score, 0 to 1.

    What a fit calls a score without rollouts is minus its loss; its pairs have an accuracy.
    """
    found: dict[str, str] = {}
    for metric in curves:
        if metric.startswith("eval/") and metric.endswith("/score"):
            place = metric.removesuffix("/score")
            own = [metric]
            if _is_fit(config) and f"{metric}_low" not in curves:
                own = [m for kind in ("pref", "rm") if (m := f"{place}/{kind}/accuracy") in curves]
            if own:
                found[place.removeprefix("eval/")] = own[0]
    return found


def _evals(curves: Mapping[str, Series], config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, metric in _score_metrics(curves, config).items():
        curve = curves[metric]
        bounds = [
            dict(zip(c.steps, c.values, strict=True))
            for end in ("_low", "_high")
            if (c := curves.get(metric + end)) is not None
        ]
        low, high = bounds if len(bounds) == 2 else ({}, {})
        found[shown(name)] = {
            "steps": curve.steps,
            "score": curve.values,
            "low": [low.get(step) for step in curve.steps],
            "high": [high.get(step) for step in curve.steps],
        }
    return found


def _scores(
    curves: Mapping[str, Series], config: Mapping[str, Any]
) -> tuple[str, float | None, float | None]:
    """Name of an evaluation, its first score and its last; one evaluation is no after.

    The first that the config names: a mean over several would be a score of nothing.
    """
    metrics, order = _score_metrics(curves, config), list(config)
    if not metrics:
        return "", None, None

    def order_key(name: str) -> tuple[int, str]:
        key = f"eval.datasets.{name}.source"
        return (order.index(key) if key in order else len(order), name)

    first = min(metrics, key=order_key)
    curve = curves[metrics[first]]
    after = curve.values[-1] if len(curve.steps) > 1 else None
    return first, curve.values[0], after


def _last_step(curves: Mapping[str, Series]) -> int:
    return max((curve.steps[-1] for curve in curves.values()), default=0)


def _planned(config: Mapping[str, Any]) -> int | None:
    """Steps after which the run ends by itself; None where its config does not say."""
    steps = config.get("train.steps")
    return steps if isinstance(steps, int) and not isinstance(steps, bool) else None


def _pause(path: Path) -> dict[str, Any] | None:
    """Why a run waits, and the command that answers it."""
    found = pause_of(path)
    if found is None or run_state(path) == "finished":
        return None
    step, why = found
    return {
        "step": step,
        "why": shown(why),
        "answer": shown(f"agentrl control {shlex.quote(str(path))} continue"),
    }


def _events(path: Path, verdicts: tuple[Verdict, ...], notes: list[str]) -> list[dict[str, Any]]:
    """What happened when: findings, and what the run's own rules decided."""
    events = [
        {
            "step": verdict.first_step,
            "what": str(verdict.status),
            "text": verdict.detail,
            "detector": verdict.name,
        }
        for verdict in verdicts
        if verdict.status in (Status.WARN, Status.FAIL) and verdict.first_step is not None
    ]
    torn = 0
    for record in read_objects(RunPaths(path).health_file, last_bytes=_MOST_BYTES):
        try:
            step, what = int((record or {})["step"]), str((record or {})["what"])
        except (ValueError, TypeError, KeyError):
            torn += 1
            continue
        events.append({"step": step, "what": shown(what), "text": _said(record or {})})
    if torn:
        notes.append(f"health.jsonl: left out {torn} lines that are torn or not ours")
    return sorted(events, key=lambda event: event["step"])[-_MOST_EVENTS:]


def _said(record: Mapping[str, Any]) -> str:
    for key in ("text", "title", "message"):
        if isinstance(record.get(key), str):
            return shown(record[key], 2000)
    rest = {k: v for k, v in record.items() if k not in ("time", "step", "what")}
    return shown(", ".join(f"{key}: {value}" for key, value in rest.items()), 2000)


def _result(path: Path) -> dict[str, Any] | None:
    """Why the run ended."""
    result = read_object(RunPaths(path).result_file)
    if not result:
        return None
    return {
        "steps": number(result.get("steps")),
        "reason": shown(str(result.get("reason", "")), 2000),
        "elapsed_s": number(result.get("elapsed_s")),
    }


def _moment(text: Any) -> float | None:
    try:
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return None


def _plain(value: Any, depth: int = 2) -> Any:
    """A config value, fit for JSON; bounded, since YAML can name a list in itself."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, (list, tuple)) and depth:
        return [_plain(item, depth - 1) for item in value[:100]]
    if isinstance(value, (list, tuple, Mapping)):
        return f"({len(value)} values)"
    return shown(str(value), 20_000)
