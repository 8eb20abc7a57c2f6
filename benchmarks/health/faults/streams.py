"""Histories in a small file each: curves rounded to 5 digits, and a few rollouts."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from agentrl.health import History, RolloutFacts, Series

RECORDED = Path(__file__).parent / "recorded"
_NEVER_READ = ("timing_s/", "perf/", "serving/", "sync/", "batch/", "env/", "waste/", "sandbox/",
               "async/", "train/tokens", "rollout/duration", "reward_sh")  # fmt: skip
"""Curves that no detector looks at."""
_PER_STEP = 16
_CHARS = 300


def save(path: Path, history: History) -> None:
    """Write what detectors look at, small: whole groups of the sampled steps, texts cut."""
    taken: dict[tuple[str, int], int] = {}
    groups: set[tuple[str, int, str]] = set()
    kept: list[RolloutFacts] = []
    for fact in history.rollouts:
        where = (fact.kind, fact.step)
        if (*where, fact.group_id) not in groups:
            if taken.get(where, 0) >= _PER_STEP or fact.kind != "train":
                continue
            groups.add((*where, fact.group_id))
        taken[where] = taken.get(where, 0) + 1
        kept.append(replace(fact, text=fact.text[:_CHARS]))
    record = {
        "metrics": {
            name: [series.steps, [float(f"{value:.5g}") for value in series.values]]
            for name, series in history.metrics.items()
            if not name.startswith(_NEVER_READ)
        },
        "rollouts": [_short(fact) for fact in kept],
        "config": {key: value for key, value in history.config.items() if _plain(key)},
        "not_finite": history.not_finite,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        packed.write(json.dumps(record, separators=(",", ":")).encode())


def load(path: Path) -> History:
    """The inverse of `save`."""
    record: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return History(
        metrics={
            name: Series(steps=tuple(steps), values=tuple(values))
            for name, (steps, values) in record["metrics"].items()
        },
        rollouts=tuple(RolloutFacts(**fact) for fact in record["rollouts"]),
        config=record["config"],
        not_finite={name: tuple(steps) for name, steps in record["not_finite"].items()},
    )


def until(history: History, last: float) -> History:
    """The history as it stood after step `last`."""
    metrics: dict[str, Series] = {}
    for name, series in history.metrics.items():
        count = sum(step <= last for step in series.steps)
        if count:
            metrics[name] = Series(steps=series.steps[:count], values=series.values[:count])
    broken = {n: tuple(s for s in steps if s <= last) for n, steps in history.not_finite.items()}
    return replace(
        history,
        metrics=metrics,
        rollouts=[fact for fact in history.rollouts if fact.step <= last],
        not_finite={name: steps for name, steps in broken.items() if steps},
    )


def _short(fact: RolloutFacts) -> dict[str, Any]:
    numbers = asdict(fact)
    for name in ("reward", "score", "advantage", "duration_s"):
        if numbers[name] is not None:
            numbers[name] = float(f"{numbers[name]:.4g}")
    return numbers


def _plain(key: str) -> bool:
    """Whether a config key is one that detectors or levers read; no paths of a machine."""
    return not key.startswith(("run.", "model.", "ray.", "serving.", "log.", "env.", "sync."))
