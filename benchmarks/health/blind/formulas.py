"""The maker of streams: builds a history from a row of a table of formulas (`streams.yaml`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import yaml

from agentrl.health import History
from blind import draws, texts
from blind.draws import Draw
from blind.world import Run, plain

Row = dict[str, Any]
Names = dict[str, Any]
"""What a formula may use."""


def rows(path: Path) -> list[Row]:
    """The rows of a table."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def label(row: Row) -> str:
    """Name of the stream, which is also the seed of its randomness."""
    return f"{row.get('fault', 'sound')}: {row['shape']}"


def history_of(row: Row, draw: Draw, own: Mapping[str, Any], *modules: ModuleType) -> History:
    """The history that a row describes.

    Args:
        row: of the table.
        draw: where its random numbers come from.
        own: names of this stream; `n` is its number of steps.
        modules: whose names formulas may use, beside those of every table.
    """
    names: Names = {"np": np, "Run": Run, "d": draw, "rng": draw.rng}
    for module in (draws, texts, *modules):
        names |= vars(module)
    names |= {"between": draw.between, "one_of": draw.one_of, **own}
    _assign(row.get("let", {}), names)
    for key, begin in (("plan", plain), ("agent", names.get("agent"))):
        if key in row and begin is not None:
            changes = {name: _value(formula, names) for name, formula in row[key].items()}
            names["plan"] = begin(draw, names["n"], **changes)
    for part in ("then", "after"):
        _assign(row.get(part, {}), names)
    if "history" in row:
        return _value(row["history"], names)
    run = names["run"] if "run" in names else Run(draw, names["plan"])
    return run.history(_value(row.get("texts", "math_text"), names))


def _value(formula: object, names: Names) -> Any:
    """What a formula stands for; what is no string stands for itself."""
    return eval(formula, names) if isinstance(formula, str) else formula


def _assign(formulas: Mapping[str, object], names: Names) -> None:
    for target, formula in formulas.items():
        value = _value(formula, names)
        place, part, where = target.partition("[")
        if target == "call":
            continue
        if part:
            _found(place, names)[eval(f"np.s_[{where}", names)] = value
        else:
            _put(place, value, names)


def _found(place: str, names: Names) -> Any:
    """The curve of a place: `plan.success`, `curves.kl` or a name."""
    if place.startswith("curves."):
        return names["run"].curves[place.removeprefix("curves.")]
    return _value(place, names)


def _put(place: str, value: object, names: Names) -> None:
    if place.startswith("curves."):
        names["run"].curves[place.removeprefix("curves.")] = value
    elif place.startswith("plan."):
        setattr(names["plan"], place.removeprefix("plan."), value)
    else:
        names[place] = value
    if place == "run":
        names["curves"] = names["run"].curves
