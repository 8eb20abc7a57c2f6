"""Relative error of the gradient between one row at a time and any cut of the same update.

    python benchmarks/gradient_agreement.py

A random two-layer Llama of `tests/train/tiny_llama.py`, whose norms and rotary embedding are true
float64 (the library's compute in float32 and would end the comparison at 3e-8). "local" divides
each micro-batch by its own counts: what the global denominators are there to prevent.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch
from harness import show_table

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.train.test_same_gradient import split_rows
from tests.train.tiny_llama import (
    MODES,
    algorithm,
    gradient_of,
    make_groups,
    make_step,
    relative_error,
    tiny_model,
    with_model_log_probs,
)


def local_denominators(step):
    """The broken variant: the mean over micro-batches of what each divides by its own counts."""
    (update,) = step.updates
    micros = []
    for micro in update.micro_batches:
        factor = update.global_sequences / len(micro.rows) / len(update.micro_batches)
        micros.append(replace(micro, weights_R=micro.weights_R * factor))
    return replace(step, updates=(replace(update, micro_batches=tuple(micros)),))


def errors(dtype, estimator, mode):
    """Relative error of every cut to one row at a time."""
    model = tiny_model(dtype)
    # Half of the ratios leave the clip range: both branches of the loss take part.
    groups = with_model_log_probs(model, make_groups(), noise=0.5)
    section = algorithm(advantage_estimator=estimator, loss_agg_mode=mode)

    def step(rows, tokens):
        return make_step(rows, algorithm=section, micro_batch_tokens=tokens)

    cuts = {
        "micro-batches of 48": step(groups, 48),
        "one pack": step(groups, 10_000),
        "reversed order": step(groups[::-1], 48),
        "split rollouts": step(split_rows(groups, 1), 64),
        "local": local_denominators(step(groups, 48)),
    }
    reference = gradient_of(model, step(groups, 21), section)
    return {n: relative_error(gradient_of(model, s, section), reference) for n, s in cuts.items()}


def main() -> None:
    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        found = {
            f"{estimator} {mode}": errors(dtype, estimator, mode)
            for estimator in ("dr_grpo", "grpo")
            for mode in MODES
        }
        names = next(iter(found.values()))
        rows = [(name, *(f"{e:.1e}" for e in of.values())) for name, of in found.items()]
        show_table(f"{dtype}, limit {limit:g}", ("algorithm", *names), rows)
        worst = max(e for of in found.values() for name, e in of.items() if name != "local")
        print(f"worst: {worst:.1e}  {'ok' if worst <= limit else 'TOO LARGE'}\n")


if __name__ == "__main__":
    main()
