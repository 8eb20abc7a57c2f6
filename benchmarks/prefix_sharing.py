"""A step over one-sample-per-turn data: a prefix tree against a row for every turn.

    OMP_NUM_THREADS=1 python benchmarks/prefix_sharing.py --turns 10

Eight rollouts of one prompt. Turn k of a rollout is a row whose prompt is the whole history before
it; every turn adds an observation and a sampled answer, half of its tokens each. "tree" packs all
rows with prefix sharing, "rows" packs the same rows without, "transformers" reads each row alone
with the library's own attention and logits at the answer. Forward and backward, CPU seconds on one
thread. Rows are independent and their cost is a smooth function of the turn, so the two baselines
run every `--stride`-th turn of one rollout and are scaled up; the tree runs whole.

The model is one layer of SmolLM2-135M (or of Qwen2.5-0.5B) with that layer's share of the
vocabulary, so that the shares of attention, layers and head are those of the real one. "limit" is
the ratio of floating-point operations in matrix products, attention counted causally: the longer
the history, the more of it is attention, of which sharing saves less than of anything else.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from agentrl.batch.packing import pack_rows
from agentrl.batch.records import MicroBatch, Row, RowKey
from agentrl.batch.tensors import to_tensors
from agentrl.machine.allocator import keep_freed_memory
from agentrl.train.model.attention import packed_attention
from agentrl.train.model.logprobs import packed_log_probs

GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One layer, and its share of the head."""

    width: int
    """Of the hidden states."""
    inner: int
    """Of the feed-forward layer."""
    heads: int
    """Of the queries."""
    kv_heads: int
    """Of keys and values."""
    vocabulary: int
    """Ids of the whole model divided by its layers."""

    @property
    def weights(self) -> int:
        """Of the matrices."""
        kv = self.width * self.kv_heads // self.heads
        return 2 * self.width * (self.width + kv) + 3 * self.width * self.inner


SHAPES = {
    "smollm": Shape(width=576, inner=1536, heads=9, kv_heads=3, vocabulary=1638),
    "qwen": Shape(width=896, inner=4864, heads=14, kv_heads=2, vocabulary=6330),
}


def make_model(shape: Shape) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.width, intermediate_size=shape.inner,
        num_hidden_layers=1, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        max_position_embeddings=32768, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def make_rows(args: argparse.Namespace) -> list[Row]:
    """One row per turn and rollout, in that order."""
    rng = random.Random(0)
    prompt = rng.choices(range(SHAPES[args.shape].vocabulary), k=args.prompt)
    rows: list[Row] = []
    for number in range(GROUP):
        ids = list(prompt)
        for turn in range(args.turns):
            ids += rng.choices(range(SHAPES[args.shape].vocabulary), k=args.turn)
            answer = args.turn // 2
            rows.append(
                Row(
                    key=RowKey(group_id="g", rollout_id=f"r{number}", row_index=turn),
                    input_ids=np.array(ids, dtype=np.int64),
                    prompt_length=len(ids) - answer,
                    mask_R=np.ones(answer, dtype=np.bool_),
                    rollout_log_probs_R=np.zeros(answer),
                    sampled_R=np.ones(answer, dtype=np.bool_),
                    advantages_R=np.ones(answer),
                    weight=1.0,
                    temperature=1.0,
                )
            )
    return rows


def products(rows: list[Row], shape: Shape, *, shared: bool) -> float:
    """Multiplications and additions of matrix products in one pass."""
    contexts = [np.arange(1, row.length + 1) for row in rows]
    if shared:
        # A turn repeats all but its own tokens; the prompt belongs to the first row.
        contexts = [
            context if index == 0 else context[rows[index - 1].length if row.key.row_index else
                                               prompt_of(rows) :]
            for index, (row, context) in enumerate(zip(rows, contexts, strict=True))
        ]  # fmt: skip
    tokens, pairs = sum(map(len, contexts)), sum(int(context.sum()) for context in contexts)
    answers = sum(len(row.mask_R) for row in rows)
    head = answers * shape.width * shape.vocabulary
    return 6.0 * (tokens * shape.weights + 2 * pairs * shape.width + head)


def prompt_of(rows: list[Row]) -> int:
    return rows[0].prompt_length - len(rows[0].mask_R)


def packed(model: Any, micros: tuple[MicroBatch, ...]) -> None:
    for micro in micros:
        batch = to_tensors(micro, device=torch.device("cpu"), dtype=torch.float32)
        with packed_attention(model):
            packed_log_probs(model, batch).log_probs_R.sum().backward()


def plain(model: Any, rows: list[Row]) -> None:
    for row in rows:
        answer = torch.as_tensor(row.input_ids[row.prompt_length :])
        ids = torch.as_tensor(row.input_ids)[None]
        logits = model(ids, logits_to_keep=len(answer) + 1, use_cache=False).logits[0, :-1]
        torch.log_softmax(logits, -1).gather(1, answer[:, None]).sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--turn", type=int, default=256, help="tokens of a turn")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--shape", choices=SHAPES, default="smollm")
    parser.add_argument("--stride", type=int, default=5)
    parser.add_argument("--micro-batch-tokens", type=int, default=32768)
    args = parser.parse_args()
    if args.turns % args.stride:
        parser.error(f"--turns {args.turns} is not a multiple of --stride {args.stride}")
    torch.set_num_threads(1)
    keep_freed_memory()
    shape = SHAPES[args.shape]
    model, rows = make_model(shape), make_rows(args)
    # The middle of each stretch of turns stands for the stretch.
    some = rows[args.stride // 2 : args.turns : args.stride]
    scale = GROUP * args.turns / len(some)
    budget = max(args.micro_batch_tokens, rows[-1].length)
    tree = pack_rows(rows, micro_batch_tokens=budget, prefix_sharing=True)
    apart = pack_rows(some, micro_batch_tokens=rows[-1].length)
    runs = {
        "tree": (lambda: packed(model, tree), 1.0),
        "rows": (lambda: packed(model, apart), scale),
        "transformers": (lambda: plain(model, some), scale),
    }
    # Once before, as in every step of a run but the first: its memory is then in the process.
    packed(model, tree[:1])
    seconds = {}
    for name, (run, factor) in runs.items():
        model.zero_grad()
        began = time.process_time()
        run()
        seconds[name] = (time.process_time() - began) * factor
    limit = products(rows, shape, shared=False) / products(rows, shape, shared=True)
    table = Table(
        title=f"{GROUP} rollouts, prompt {args.prompt}, {args.turns} turns of {args.turn}"
    )
    for column in ("layout", "tokens", "CPU s", "tree is faster by", "limit"):
        table.add_column(column, justify="right")
    for name, found in seconds.items():
        tokens = sum(m.num_tokens for m in tree) if name == "tree" else sum(r.length for r in rows)
        bound = 1.0 if name == "tree" else limit
        table.add_row(
            name, str(tokens), f"{found:.1f}", f"{found / seconds['tree']:.1f}", f"{bound:.1f}"
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
