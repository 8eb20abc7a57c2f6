"""The synthetic streams of `ill.yaml`, `healthy.yaml` and `fits.yaml`: what each run is given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from faults import synthetic
from faults.synthetic import Curve, Draft, Plan

Rows = Mapping[str, Mapping[str, Any]]
"""Rows of a file by name."""


def held_pairs(draft: Draft, *, kind: str, accuracy: Curve, loss: Curve, pairs: int) -> None:
    """Evaluations on the same pairs each time: noise of their draw stays, some of each moves."""
    own = draft.rng.gauss(0, 0.5 / math.sqrt(pairs))
    draft.evaluate(None)
    for step in range(0, draft.steps + 1, draft.every):
        t = step / draft.steps
        share = accuracy(t) + own + draft.rng.gauss(0, 0.15 / math.sqrt(pairs))
        if step == 0 and kind == "pref":
            share = 0.5  # the policy is its own reference
        values = {
            f"{kind}/accuracy": min(1.0, max(0.0, share)),
            f"{'dpo' if kind == 'pref' else 'rm'}/loss": loss(t) + draft.rng.gauss(0, 0.002),
            "fit/examples": float(pairs),
        }
        for name, value in values.items():
            draft.curves.setdefault(f"eval/held/{name}", {})[step] = value


class _Planting:
    """What rows plant in one draft, and the names that they have set."""

    def __init__(self, draft: Draft, rows: Rows) -> None:
        self._draft, self._rows = draft, rows
        self._names: dict[str, Any] = {"math": math, **vars(synthetic), "rng": draft.rng}
        self._names |= {"steps": draft.steps, "every": draft.every}

    def _value(self, formula: object, **more: object) -> Any:
        """What a formula stands for; what is no string stands for itself."""
        if not isinstance(formula, str):
            return formula
        return eval(formula, {**self._names, "curves": self._draft.curves, **more})

    def _level(self, formula: str | float) -> Curve:
        return self._value(f"lambda t: {formula}")

    def plant(self, what: Mapping[str, Any]) -> None:
        """Do in order what a row asks for."""
        for name, of in what.items():
            known = getattr(self, f"_plant_{name}", None)
            if known is not None:
                known(of)
            elif isinstance(of, list):
                level, noise, *bounds = of
                bound = bounds[0] if bounds else {}
                self._draft.curve(name, self._level(level), self._value(noise), **bound)
            elif "as" in of:
                self._draft.curves[name] = dict(self._draft.curves[of["as"]])
            else:
                values = self._draft.curves.setdefault(name, {})
                for step in self._value(of["at"]):
                    values[step] = self._value(of["value"], step=step)

    def _plant_after(self, name: str) -> None:
        self.plant(self._rows[name]["plant"])

    def _plant_over(self, what: Mapping[str, Any]) -> None:
        self.plant(what)

    def _plant_begin(self, config: Mapping[str, Any]) -> None:
        self._draft.curves, self._draft.config = {}, dict(config)

    def _plant_config(self, keys: Mapping[str, Any]) -> None:
        self._draft.config |= keys

    def _plant_let(self, names: Mapping[str, str]) -> None:
        for name, formula in names.items():
            self._names[name] = self._value(formula)

    def _plant_unless(self, names: Mapping[str, str]) -> None:
        self._plant_let({name: of for name, of in names.items() if name not in self._names})

    def _plant_held_out(self, of: list[Any] | None) -> None:
        self._draft.evaluate(None if of is None else self._level(of[0]), *(of or [])[1:])

    def _plant_held_pairs(self, of: Mapping[str, Any]) -> None:
        levels = {name: self._level(of[name]) for name in ("accuracy", "loss")}
        held_pairs(self._draft, **{**of, **levels})

    def _plant_write(self, of: list[Any]) -> None:
        self._draft.write(getattr(synthetic, of[0]), *map(self._level, of[1:]))

    def _plant_pay_for(self, part: str) -> None:
        self._draft.pay_for(part)

    def _plant_pay_for_length(self, _: object) -> None:
        self._draft.pay_for_length()


def _plant(what: Mapping[str, Any], rows: Rows, draft: Draft) -> None:
    _Planting(draft, rows).plant(what)


def _plan(file: str) -> Plan:
    path = Path(__file__).with_name(file)
    rows = {row["name"]: row for row in yaml.safe_load(path.read_text(encoding="utf-8"))}
    plan: dict[str, Any] = {}
    for name, row in rows.items():
        what = rows[row.get("like", name)].get("plant", {})
        plan[name] = (row.get("expected", ""), row.get("draft", {}), partial(_plant, what, rows))
    return plan


HEALTHY = _plan("healthy.yaml")
"""None of these may be called ill."""
ILL = _plan("ill.yaml")
"""Each of these has to be named."""
_FITS = _plan("fits.yaml")
HEALTHY_FITS = {name: of for name, of in _FITS.items() if not of[0]}
"""Fits, and RL with reward models, of which none may be called ill."""
ILL_FITS = {name: of for name, of in _FITS.items() if of[0]}
"""Those that have to be named."""
