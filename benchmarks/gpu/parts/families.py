"""Families that users train, tiny and random, against their own forward on the device, in float64.

Device moves, masks and the engine's own attention on a GPU; the compiled kernel, which computes no
float64, has the part `attention`. Not run on a GPU yet.
"""

from __future__ import annotations

import logging
import math
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import transformers

from parts.readings import Reading, Setting

sys.path.append(str(Path(__file__).resolve().parents[2] / "families"))
from sweep import GRADIENT_TOLERANCE, REFUSED, TOLERANCE, UNBUILT, look_at
from trained import TRAINED

FEW = ("llama", "gemma2", "gpt_oss")
"""Families of a test: a plain one, caps and windows, sinks."""


def quiet() -> None:
    """Silence what families log and warn of in this process; many are old."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.utils.logging.set_verbosity_error()


def measure(setting: Setting) -> Iterator[Reading]:
    """Largest differences of each family, NaN where one ends in an error; what is not computed."""
    quiet()
    not_computed: list[str] = []
    for kind in FEW if setting.small else TRAINED:
        found = look_at(kind, str(setting.device))
        if found.why or found.why_engine:
            print(f"{kind}: {found.why} {found.why_engine}")
        sides = (
            ("trainer", found.trainer, (found.packed, found.shared), "nats", TOLERANCE),
            ("gradient", found.trainer, (found.gradient,), "", GRADIENT_TOLERANCE),
            ("engine", found.engine, (found.decoded,), "nats", TOLERANCE),
        )
        for side, outcome, values, unit, bound in sides:
            if outcome in (REFUSED, UNBUILT):
                not_computed.append(f"{kind} ({side}: {outcome})")
                continue
            # NaN of either one must not be lost in a maximum.
            known = [math.nan if value is None else value for value in values]
            worst = math.nan if any(map(math.isnan, known)) else max(known)
            yield Reading(name=f"{kind}, {side}: difference", value=worst, unit=unit, bound=bound)
    what = ", ".join(not_computed) or "none"
    yield Reading(name=f"refused or not built: {what}", value=float(len(not_computed)))
