"""Time and peak memory of the language-model head: log-probabilities, entropy and gradients.

    OMP_NUM_THREADS=1 python benchmarks/lm_head.py --tokens 4096

"naive" forms all logits, takes `log_softmax` and gathers; it computes no entropy. "kept" and
"chunks" are `agentrl.train.model.head_logprobs`, which does: with the probabilities kept for the
backward pass, and in chunks that the backward pass computes again. "formed" is given the loss and
forms the gradient in the forward pass. "trl" is the kernel of TRL 1.16 where that is installed (see
trainer_vs_trl.py). Forward and backward to hidden states and weight; CPU seconds on one thread,
interleaved, medians; memory is the peak above what was resident before the pass.

"limit" is the share of a naive pass that is matrix products: nobody without another way to multiply
is faster than that. The limit for the memory is the gradient of the weight and of the hidden states
alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from agentrl.train.model.head_logprobs import head_log_probs

WIDTH, VOCABULARY = 576, 49152


def naive(hidden: Tensor, weight: Tensor, target: Tensor, upstream: Tensor) -> None:
    log_probs = torch.log_softmax((hidden @ weight.t()).float(), -1)
    log_probs.gather(1, target[:, None])[:, 0].backward(upstream)


def kept(hidden: Tensor, weight: Tensor, target: Tensor, upstream: Tensor) -> None:
    log_probs, _ = head_log_probs(hidden, weight, target, max_kept_bytes=1 << 40)
    log_probs.backward(upstream)


def chunks(hidden: Tensor, weight: Tensor, target: Tensor, upstream: Tensor) -> None:
    log_probs, _ = head_log_probs(hidden, weight, target, max_kept_bytes=1 << 26)
    log_probs.backward(upstream)


def formed(hidden: Tensor, weight: Tensor, target: Tensor, upstream: Tensor) -> None:
    log_probs, _ = head_log_probs(
        hidden, weight, target, gradient_of=lambda part, *_: upstream[part]
    )
    log_probs.backward(upstream)


def trl(hidden: Tensor, weight: Tensor, target: Tensor, upstream: Tensor) -> None:
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE, _ChunkedLogProbFunction

    log_probs, *_ = _ChunkedLogProbFunction.apply(
        hidden, weight, None, target, 1.0, _CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0,
        ("log_probs", "entropy"),
    )  # fmt: skip
    log_probs.backward(upstream)


VARIANTS: dict[str, Any] = {
    "naive": naive, "kept": kept, "chunks": chunks, "formed": formed, "trl": trl,
}  # fmt: skip


def inputs(args: argparse.Namespace) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    hidden = torch.randn(args.tokens, WIDTH, dtype=args.dtype).requires_grad_()
    weight = (torch.randn(VOCABULARY, WIDTH, dtype=args.dtype) * 0.05).requires_grad_()
    target = torch.randint(0, VOCABULARY, (args.tokens,))
    return hidden, weight, target, torch.randn(args.tokens)


def status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"no {field} in /proc/self/status")


def peak_bytes(run: Any, args: argparse.Namespace) -> int:
    given = inputs(args)
    small = [given[0][:8].detach().requires_grad_(), given[1], given[2][:8], given[3][:8]]
    run(*small)  # loads what loads at first use
    given[1].grad = None
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    run(*given)
    return status("VmHWM") - before


def timed(names: list[str], args: argparse.Namespace) -> dict[str, float]:
    given = inputs(args)
    seconds: dict[str, list[float]] = {name: [] for name in ["products", *names]}
    for turn in range(args.rounds + 1):
        for name in seconds:
            given[0].grad = given[1].grad = None
            began = time.process_time()
            if name == "products":
                products(given[0].detach(), given[1].detach())
            else:
                VARIANTS[name](*given)
            if turn:
                seconds[name].append(time.process_time() - began)
    return {name: statistics.median(found) for name, found in seconds.items()}


def products(hidden: Tensor, weight: Tensor) -> None:
    """The three of a pass, on logits that are made once and thrown away."""
    logits = hidden @ weight.t()
    logits @ weight
    logits.t() @ hidden


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variants", default="naive,kept,chunks,formed")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--peak-of", choices=VARIANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.dtype = torch.bfloat16 if args.bf16 else torch.float32
    torch.set_num_threads(1)
    if args.peak_of:
        print(json.dumps(peak_bytes(VARIANTS[args.peak_of], args)))
        return
    names = args.variants.split(",")
    seconds = timed(names, args)
    peaks = {}
    for name in names:
        command = [sys.executable, __file__, *sys.argv[1:], "--peak-of", name]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        peaks[name] = json.loads(out.splitlines()[-1])
    table = Table(title=f"{args.tokens} tokens, vocabulary {VOCABULARY}, width {WIDTH}")
    for column in ("head", "CPU s", "speed of naive", "peak MiB", "memory of naive"):
        table.add_column(column, justify="right")
    limit = (args.tokens + VOCABULARY) * WIDTH * args.dtype.itemsize
    for name, peak in {**peaks, "products": limit}.items():
        table.add_row(
            "limit" if name == "products" else name,
            f"{seconds[name]:.2f}",
            f"{seconds['naive'] / seconds[name]:.2f}",
            f"{peak / 2**20:.0f}",
            f"{peak / peaks['naive']:.2f}",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
