"""Looking up metrics by name: what one means, and what verl calls it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from agentrl.metrics.catalog import CATALOG, MetricName

_PART = re.compile(r"[A-Z]+")
_NUMBERS = {"K", "N"}
"""Parts that stand for a number."""


def find_metric(name: str) -> MetricName | None:
    """The entry of the catalog that `name` is an instance of; None for a name of the user's own.

    Example:
        >>> find_metric("eval/held_out/pass@4").name
        'eval/NAME/pass@K'
    """
    entry, _ = _match(name)
    return entry


def is_of_machine(name: str) -> bool:
    """True for clocks, speeds and memory: what a repeated step need not give again."""
    return name.startswith(("perf/", "timing_s/")) or name == "train/tokens_per_second"


def verl_name(name: str, *, n_samples: int = 1) -> str:
    """Name of a metric in verl; the name itself where verl has no such number.

    Args:
        name: as we log it.
        n_samples: rollouts for each task of an evaluation, part of verl's names of scores.

    Example:
        >>> verl_name("eval/held_out/score", n_samples=2)
        'val-core/held_out/reward/mean@2'
    """
    entry, parts = _match(name)
    if entry is None or not entry.verl:
        return name
    known = {"N": str(n_samples), **parts}
    return _PART.sub(lambda found: known[found[0]], entry.verl)


def verl_names(values: Mapping[str, float], *, n_samples: int = 1) -> dict[str, float]:
    """The values of a step under verl's names. Ours keep a name that two would claim."""
    renamed = {name: verl_name(name, n_samples=n_samples) for name in values}
    out: dict[str, float] = {}
    for name, value in values.items():
        other = renamed[name]
        taken = other != name and (other in values or other in out)
        out[name if taken else other] = value
    return out


@cache
def _match(name: str) -> tuple[MetricName | None, dict[str, str]]:
    exact, patterns = _index()
    if name in exact:
        return exact[name], {}
    for pattern, entry in patterns:
        found = pattern.fullmatch(name)
        if found:
            return entry, found.groupdict()
    return None, {}


@cache
def _index() -> tuple[dict[str, MetricName], list[tuple[re.Pattern[str], MetricName]]]:
    exact = {entry.name: entry for entry in CATALOG if not _PART.search(entry.name)}
    patterns = [
        (re.compile(_regex(entry.name)), entry) for entry in CATALOG if entry.name not in exact
    ]
    return exact, patterns


def _regex(name: str) -> str:
    """A name of the user's may hold anything, slashes included; a number holds digits."""
    pieces: list[str] = []
    at = 0
    for found in _PART.finditer(name):
        pieces.append(re.escape(name[at : found.start()]))
        inner = r"\d+" if found[0] in _NUMBERS else ".+"
        pieces.append(f"(?P<{found[0]}>{inner})")
        at = found.end()
    return "".join([*pieces, re.escape(name[at:])])
