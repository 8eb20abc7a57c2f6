"""A training step against TRL's, with the same weights and advantages; needs TRL 1.16.

The numbers of both are compared first: `benchmarks/trainer_vs_trl.py` refuses gradient norms that
differ by more than 2 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from parts.readings import PartSkipped, Reading, Setting

sys.path.append(str(Path(__file__).resolve().parents[2]))

CASES = ("smollm-512-128", "smollm-128-512")


def measure(setting: Setting) -> Iterator[Reading]:
    """Milliseconds of a step of both, and their ratio."""
    try:
        import datasets  # noqa: F401 - `trainer_vs_trl` imports both when it makes TRL's trainer
        import trainer_vs_trl as both
        import trl.trainer.grpo_trainer  # noqa: F401 - what is missing shows here, not at `import trl`
    except ImportError as error:
        raise PartSkipped(f"not installed here: {error}") from None

    for name in ("small-ragged-128-512-one-group",) if setting.small else CASES:
        case = both.CASES[name]
        options = argparse.Namespace(
            dtype=torch.float32 if setting.small else torch.bfloat16,
            device=str(setting.device), micro_batch_tokens=8192, checkpointing=False,
            no_sharing=False,
        )  # fmt: skip
        variants = {kind: both.make(kind, case, options) for kind in ("agentrl", "default")}
        seconds = both.timed(variants, 1 if setting.small else 10, device=options.device)
        medians = {kind: statistics.median(times) for kind, times in seconds.items()}
        for kind, value in medians.items():
            yield Reading(name=f"{name}: {kind}, a step", value=value * 1e3, unit="ms")
        ratio = medians["default"] / medians["agentrl"]
        yield Reading(name=f"{name}: agentrl is faster by", value=ratio)
        del variants
