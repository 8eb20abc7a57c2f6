"""The list of runs, and the first screen of one: curves, bands, verdicts, time and waste."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from agentrl.data.run.paths import RunPaths
from agentrl.data.run.read import read_object, read_objects
from agentrl.disk.proof_lines import proof_rows
from agentrl.health import (
    DASHBOARD,
    FIT_DASHBOARD,
    History,
    Series,
    Verdict,
    limits,
    own_thresholds,
)
from agentrl.health.dashboard import HELD_OUT
from agentrl.health.findings import held_out
from agentrl.health.report import ranked_records
from agentrl.inspect.pages.hacking.answer import answer_of
from agentrl.inspect.pages.hacking.moved import reward_line
from agentrl.inspect.pages.scores import eval_answers, first_and_last, is_fit
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.run_labels import run_labels
from agentrl.inspect.read.runs import pause_of, run_state
from agentrl.inspect.read.safe_json import number, shown
from agentrl.metrics import find_metric
from agentrl.types.finding import Status

_MOST_BYTES = 2**20
"""Read of the journal's end."""
_MOST_EVENTS = 500
_ON_TRAINING_TASKS = (
    "Score of an evaluation whose tasks are trained on: it says what was learned of them, and not "
    "whether anything else was."
)


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
    score, before, after = first_and_last(curves, config)
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
        "ended": (_result(path) or {"reason": ""})["reason"],
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
    evals = eval_answers(reader, health.history)
    return {
        "id": reader.run.id,
        "name": reader.run.name,
        "path": shown(str(reader.path)),
        "state": run_state(reader.path),
        "paused": _pause(reader.path),
        "planned_steps": _planned(health.history.config),
        "config": {shown(k): _plain(v) for k, v in sorted(health.history.config.items())},
        "proofs": [
            {key: shown(text) for key, text in row.items()} for row in proof_rows(reader.identity())
        ],
        "metrics": {shown(name): _curve(curve) for name, curve in curves.items()},
        "meanings": _meanings(curves),
        "dashboard": _dashboard(health.history),
        "verdicts": [verdict_json(verdict) for verdict in health.verdicts],
        **_ranked(health.verdicts, str(reader.path)),
        "reward_moved": reward_line(health.history),
        "hacking": None
        if is_fit(health.history.config)
        else answer_of(reader, health.history, health.verdicts, evals),
        "events": _events(reader.path, health.verdicts, notes),
        "timing": _below(curves, "timing_s/", but=("elapsed",)),
        "waste": {what: _below(curves, f"waste/{what}/") for what in ("tokens", "seconds")},
        "evals": evals,
        "examples": reader.examples.steps(),
        "kinds": reader.rows.kinds(),
        "labels": run_labels(reader),
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


def _ranked(verdicts: Sequence[Verdict], run: str) -> dict[str, Any]:
    found = ranked_records(verdicts, run)
    for lever in found["levers"]:
        lever["value"] = _plain(lever["value"])
    for cause in found["causes"]:
        cause["command"] = shown(cause["command"])
    return found


def _curve(curve: Series) -> dict[str, Any]:
    return {"steps": curve.steps, "values": curve.values}


def _meanings(curves: Mapping[str, Series]) -> dict[str, dict[str, str]]:
    """The catalog's meaning of each metric that it knows."""
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


def _dashboard(history: History) -> list[dict[str, Any]]:
    """Bands in order; one that stands for several curves is given once for each."""
    found: list[dict[str, Any]] = []
    curves, untrained = history.metrics, held_out(history)
    bounds = limits(own_thresholds(history))
    for band in FIT_DASHBOARD if is_fit(history.config) else DASHBOARD:
        names = [band.metric]
        if "*" in band.metric:
            names = [name for name in curves if fnmatchcase(name, band.metric)] or names
        for name in names:
            record = dataclasses.asdict(band.at(bounds))
            if name != band.metric:
                fixed = band.metric.split("*")
                stood_for = name.removeprefix(fixed[0]).removesuffix(fixed[-1])
                record |= {"metric": shown(name), "label": f"{band.label}: {shown(stood_for)}"}
                if band.metric == HELD_OUT.metric and stood_for not in untrained:
                    record |= {
                        "label": f"Score on training tasks: {shown(stood_for)}",
                        "what": _ON_TRAINING_TASKS,
                    }
            found.append(record)
    return found


def _last_step(curves: Mapping[str, Series]) -> int:
    return max((curve.steps[-1] for curve in curves.values()), default=0)


def _planned(config: Mapping[str, Any]) -> int | None:
    """Steps after which the run ends by itself; None where its config names none."""
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
