"""Operators, waits for the device and Python time of one training step, beside TRL's, on a CPU.

    pip install --no-deps --target /somewhere trl==1.16
    OMP_NUM_THREADS=1 PYTHONPATH=/somewhere python benchmarks/step_operators.py even

The same batch as in `trainer_vs_trl.py`, through a model with the layers and the vocabulary of
SmolLM2-135M and a width of 64, so that a step is short: what is launched depends on the layers.
Counted by torch's profiler in a second step. An operator is one that launches work of its own: it
calls no other, and is no view. "waits" are those for which a GPU and Python would wait for each
other. Of attention and head a CPU has kernels of its own, so they stand apart: on a GPU either is a
few launches a layer, or a micro-batch. "python ms" is what of the step is spent outside of
operators, the profiler's own time included, on both sides.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from harness import Choice, options, show_table
from torch.profiler import ProfilerActivity, profile

sys.path.append(str(Path(__file__).with_name("gpu")))

import trainer_vs_trl
from parts.models import SHAPE as SMOLLM
from trainer_vs_trl import Case, even, make, ragged

NARROW = SMOLLM | {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
CASES = ("even", "ragged")
WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select")
VIEWS = (
    "view", "_unsafe_view", "reshape", "as_strided", "expand", "permute", "transpose", "t",
    "select", "slice", "squeeze", "unsqueeze", "split", "narrow", "detach", "alias", "unbind",
    "empty", "empty_like", "empty_strided", "resize_", "item", "lift_fresh", "result_type",
    "_reshape_alias", "resolve_conj", "resolve_neg", "promote_types", "as_strided_", "new_empty",
    "set_", "numpy_T", "chunk", "unfold", "is_nonzero", "to", "detach_",
)  # fmt: skip
PARTS = {
    "CpuRows": "attention",
    "scaled_dot_product": "attention",
    "ScaledDotProduct": "attention",
    "_HeadLogProbs": "head",
}
SMALL, MIDDLE = 1 << 12, 1 << 18
COLUMNS = (
    "variant", "operators", "<= 4 Ki numbers", "<= 256 Ki", "larger", "of attention", "of head",
    "waits", "python ms", "step ms",
)  # fmt: skip


def case_of(name: str) -> Case:
    """The lengths of a case, with the narrow model."""
    found = even(NARROW, 512, 128) if name == "even" else ragged(512, 128, groups=4)
    return Case(shape=NARROW, prompts=found.prompts, answers=found.answers)


def part_of(event: Any) -> str:
    while event is not None:
        for name, part in PARTS.items():
            if name in event.name:
                return part
        event = event.cpu_parent
    return "rest"


def size_of(event: Any) -> int:
    """Numbers in the largest input; lists of tensors have the size of their largest one."""
    largest = 0

    def look(shape: Any) -> None:
        nonlocal largest
        if isinstance(shape, (list, tuple)) and shape and isinstance(shape[0], (list, tuple)):
            for inner in shape:
                look(inner)
        elif isinstance(shape, (list, tuple)):
            product = 1
            for axis in shape:
                product *= axis
            largest = max(largest, product)

    for shape in event.input_shapes or ():
        look(shape)
    return largest


def counted(stepper: Any) -> tuple[Counter[str], Counter[str]]:
    """Counts of one step by column, and by operator of the rest."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as seen:
        began = time.perf_counter()
        stepper.step()
        wall_ms = (time.perf_counter() - began) * 1e3
    found, names = Counter[str](), Counter[str]()
    inside_us = 0.0
    for event in seen.events() or ():
        if not event.name.startswith("aten::"):
            continue
        parent = event.cpu_parent
        while parent is not None and not parent.name.startswith("aten::"):
            parent = parent.cpu_parent
        if parent is None:
            inside_us += event.cpu_time_total
        name, part = event.name.removeprefix("aten::"), part_of(event)
        if name in WAITS:
            found["waits"] += 1
            names[f"wait {name} ({part})"] += 1
        if name in VIEWS or any(c.name.startswith("aten::") and
                                c.name.removeprefix("aten::") not in VIEWS
                                for c in event.cpu_children):  # fmt: skip
            continue
        found["operators"] += 1
        if part != "rest":
            found[f"of {part}"] += 1
            continue
        size = size_of(event)
        found[COLUMNS[2] if size <= SMALL else COLUMNS[3] if size <= MIDDLE else COLUMNS[4]] += 1
        names[name] += 1
    found["python ms"] = round(wall_ms - inside_us / 1e3)
    found["step ms"] = round(wall_ms)
    return found, names


def main() -> None:
    args: argparse.Namespace = options(
        __doc__, case_=Choice(CASES), variants=",".join(trainer_vs_trl.VARIANTS[:2]), bf16=False,
        checkpointing=False, micro_batch_tokens=8192, no_sharing=False, names=False,
    )  # fmt: skip
    args.dtype, args.device = torch.bfloat16 if args.bf16 else torch.float32, "cpu"
    torch.set_num_threads(1)
    rows = []
    for name in args.variants.split(","):
        stepper = make(name, case_of(args.case), args)
        stepper.step()
        found, names = counted(stepper)
        rows.append((name, *(found[column] for column in COLUMNS[1:])))
        if args.names:
            print(name, dict(names.most_common(60)))
    show_table(" ".join(sys.argv[1:]), COLUMNS, rows)


if __name__ == "__main__":
    main()
