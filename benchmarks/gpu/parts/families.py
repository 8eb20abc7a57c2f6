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
from contextlib import contextmanager
from pathlib import Path

import transformers

from parts.readings import Reading, Setting

sys.path.append(str(Path(__file__).resolve().parents[2] / "families"))
from sweep import GRADIENT_TOLERANCE, REFUSED, TOLERANCE, UNBUILT, look_at
from trained import TRAINED

FEW = ("llama", "gemma2", "gpt_oss")
"""Families of a test: a plain one, caps and windows, sinks."""


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, what families log and warn of is silent; many are old."""
    verbosity = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        transformers.utils.logging.set_verbosity(verbosity)


def measure(setting: Setting) -> Iterator[Reading]:
    """Largest differences of each family, NaN where one ends in an error; what is not computed."""
    not_computed: list[str] = []
    for kind in FEW if setting.small else TRAINED:
        with quiet():
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
