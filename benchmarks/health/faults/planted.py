"""The synthetic streams of `ill.yaml` and `healthy.yaml`: what is planted in a healthy run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from faults import synthetic
from faults.synthetic import Curve, Draft, Plan


def _value(formula: object, draft: Draft, **more: object) -> Any:
    """What a formula stands for; what is no string stands for itself."""
    if not isinstance(formula, str):
        return formula
    own = {"rng": draft.rng, "steps": draft.steps, "curves": draft.curves}
    return eval(formula, {"math": math, **vars(synthetic), **own, **more})


def _level(formula: str | float, draft: Draft) -> Curve:
    return _value(f"lambda t: {formula}", draft)


def _plant(what: Mapping[str, Any], draft: Draft) -> None:
    for name, of in what.items():
        if name == "config":
            draft.config |= of
        elif name == "held_out":
            draft.evaluate(None if of is None else _level(of[0], draft), *(of or [])[1:])
        elif name == "write":
            draft.write(getattr(synthetic, of[0]), *(_level(pay, draft) for pay in of[1:]))
        elif name == "pay_for":
            draft.pay_for(of)
        elif name == "pay_for_length":
            draft.pay_for_length()
        elif isinstance(of, list):
            level, noise, *bounds = of
            draft.curve(name, _level(level, draft), noise, **(bounds[0] if bounds else {}))
        elif "as" in of:
            draft.curves[name] = dict(draft.curves[of["as"]])
        else:
            values = draft.curves.setdefault(name, {})
            for step in _value(of["at"], draft):
                values[step] = _value(of["value"], draft, step=step)


def _plan(file: str) -> Plan:
    path = Path(__file__).with_name(file)
    rows = {row["name"]: row for row in yaml.safe_load(path.read_text(encoding="utf-8"))}
    plan: dict[str, Any] = {}
    for name, row in rows.items():
        what = rows[row.get("like", name)].get("plant", {})
        plan[name] = (row.get("expected", ""), row.get("draft", {}), partial(_plant, what))
    return plan


HEALTHY = _plan("healthy.yaml")
"""None of these may be called ill."""
ILL = _plan("ill.yaml")
"""Each of these has to be named."""
