"""The gap between sampler and trainer with `model.head_dtype` model and float32, and its cost.

    python benchmarks/head_dtype.py            # the 135M quickstart model in bfloat16

A sequence goes through the embedded engine's decoding row by row (the sampler) and through the
trainer's packed pass. "against float32 head": log-probabilities of one side against float64 logits
of that side's own hidden states, so rounding of the head alone. "sampler against trainer" is the
whole gap, kernels included. Costs are medians of interleaved repeats, in ratio to
`head_dtype: model`: a decode step with 32 rows, log-probabilities of 1,024 tokens without a
gradient, and a forward and backward pass over them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from agentrl.config.schema import ModelSection
from agentrl.models.lm_head import use_float32_head
from agentrl.serving.embedded.forward import CacheSegment, RowModel
from agentrl.serving.embedded.kv_cache import KvCache
from agentrl.train.model.attention import packed_attention
from agentrl.train.model.head_logprobs import head_log_probs
from agentrl.train.model.pretrained import load_pretrained
from agentrl.train.model.segments import Segments

HEADS = ("model", "float32")
TEXT = """def quicksort(items):
    if len(items) < 2:
        return items
    pivot, *rest = items
    left = [x for x in rest if x < pivot]
    right = [x for x in rest if x >= pivot]
    return quicksort(left) + [pivot] + quicksort(right)

Question: Alice has 14 apples, gives 3 to Bob and buys 7 more. How many apples does she have now?
Answer: Alice has 14 - 3 + 7 = 18 apples. She could share them between 6 friends, 3 for each.
"""


def chosen(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probabilities of `ids`, in float64."""
    return logits.double().log_softmax(-1).gather(1, ids[:, None])[:, 0]


def make_cache(rows: RowModel, count: int, context: int) -> KvCache:
    cache = KvCache(
        num_layers=rows.num_layers,
        num_rows=count,
        num_heads=rows.num_kv_heads,
        max_tokens=context,
        head_dim=rows.head_dim,
        dtype=rows.dtype,
        device=rows.device,
    )
    for row in range(count):
        assert cache.claim(str(row)) == row
    return cache


def packed_hidden(model: Any, ids: Tensor) -> Tensor:
    """As the trainer reads one row."""
    with packed_attention(model):
        out = model.base_model(
            input_ids=ids[None],
            position_ids=torch.arange(len(ids))[None],
            use_cache=False,
            segments=Segments.of_rows([len(ids)]),
        )
    return out.last_hidden_state[0]


class _Watched(RowModel):
    """Keeps the hidden states that its logits were made of."""

    hidden: Tensor

    def _run(self, *args: Any) -> Tensor:
        self.hidden = super()._run(*args)
        return self.hidden


def decoded(model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of `ids[1:]` in the engine, and what exact logits of its states give."""
    rows = _Watched(model)
    cache = make_cache(rows, 1, len(ids))
    found, exact, weight = [], [], model.get_output_embeddings().weight.double()
    rows.prefill(cache, [CacheSegment(row=0, start=0, ids=ids[:1].tolist())])
    cache.append_ids(0, ids[:1].tolist())
    for at in range(1, len(ids) - 1):
        logits = rows.decode(cache, [int(ids[at])])
        cache.append_ids(0, (int(ids[at]),))
        found.append(chosen(logits.float(), ids[at + 1 : at + 2]))
        exact.append(chosen(rows.hidden.double() @ weight.t(), ids[at + 1 : at + 2]))
    return torch.cat(found), torch.cat(exact)


def gaps(models: dict[str, Any], ids: Tensor) -> Table:
    table = Table(title=f"|difference of log-probabilities| in nats, {len(ids) - 2} tokens")
    for column in ("head_dtype", "between", "mean", "max"):
        table.add_column(column, justify="right")
    for name, model in models.items():
        weight = model.get_output_embeddings().weight
        with torch.no_grad():
            sampler, sampler_exact = decoded(model, ids)
            hidden = packed_hidden(model, ids)[1:-1]
            trainer, _ = head_log_probs(hidden, weight, ids[2:], float32_logits=name == "float32")
            trainer_exact = chosen(hidden.double() @ weight.double().t(), ids[2:])
        pairs = {
            "sampler against float32 head": (sampler, sampler_exact),
            "trainer against float32 head": (trainer, trainer_exact),
            "sampler against trainer": (sampler, trainer),
        }
        for between, (one, other) in pairs.items():
            off = (one.double() - other.double()).abs()
            table.add_row(name, between, f"{float(off.mean()):.2g}", f"{float(off.max()):.2g}")
    return table


def interleaved(work: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(repeats + 1):
        for name, run in work.items():
            began = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(found) for name, found in seconds.items()}


def decode_step(model: Any, batch: int, context: int) -> Callable[[], object]:
    rows = RowModel(model)
    cache = make_cache(rows, batch, context + 1)
    cache.lengths[:] = [context] * batch

    def run() -> None:
        with torch.no_grad():
            rows.decode(cache, [5] * batch)

    return run


def trainer_pass(model: Any, name: str, ids: Tensor, *, backward: bool) -> Callable[[], object]:
    weight = model.get_output_embeddings().weight

    def run() -> None:
        with torch.set_grad_enabled(backward):
            hidden = packed_hidden(model, ids)[:-1]
            found, _ = head_log_probs(hidden, weight, ids[1:], float32_logits=name == "float32")
        if backward:
            found.sum().backward()
            model.zero_grad()

    return run


def costs(models: dict[str, Any], ids: Tensor, repeats: int) -> Table:
    table = Table(title=f"seconds, medians of {repeats}")
    for column in ("work", *HEADS, "ratio"):
        table.add_column(column, justify="right")
    works = {
        "decode step, 32 rows of 256 tokens": lambda model, _: decode_step(model, 32, 256),
        "trainer forward": lambda model, name: trainer_pass(model, name, ids, backward=False),
        "trainer forward and backward": lambda model, name: trainer_pass(
            model, name, ids, backward=True
        ),
    }
    for what, make in works.items():
        found = interleaved({name: make(model, name) for name, model in models.items()}, repeats)
        base, wide = (found[name] for name in HEADS)
        table.add_row(what, f"{base:.3f}", f"{wide:.3f}", f"{wide / base:.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="quickstart")
    parser.add_argument("--tokens", type=int, default=1024, help="of a training pass")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=("gaps", "costs"))
    args = parser.parse_args()
    console = Console(width=100)
    loaded = load_pretrained(ModelSection(path=args.model, dtype="bfloat16"))
    marked = load_pretrained(ModelSection(path=args.model, dtype="bfloat16"))
    use_float32_head(marked.model)
    models = {"model": loaded.model, "float32": marked.model}
    ids = torch.tensor(loaded.tokenizer(TEXT)["input_ids"])
    if args.only != "costs":
        console.print(gaps(models, ids))
    if args.only != "gaps":
        long = ids.repeat(-(-args.tokens // len(ids)))[: args.tokens]
        console.print(costs(models, long, args.repeats))


if __name__ == "__main__":
    main()
