"""Families of causal language models, tiny and random: trainer and engine beside the model itself.

    python benchmarks/families/sweep.py [--all] [--device cuda] [KIND ...]

Log-probabilities and gradients of packed rows, and of prefix-shared ones with activations that are
recomputed, and log-probabilities that the embedded engine decodes, are compared with the model's
own forward, one row at a time, in float64.
One line of JSON a family, then the counts. Without arguments the families that users train
(`trained.py`); with `--all` every causal family that `transformers` has. Exit status 1 where a
family is wrong or ends in an error that is not ours.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import transformers
from tiny_models import VOCABULARY, build
from torch import Tensor
from torch.nn import functional
from trained import TRAINED
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from agentrl.batch.packing import pack_micro_batch
from agentrl.batch.records import Row, RowKey
from agentrl.config.schema import TrainSection
from agentrl.errors import AgentrlError
from agentrl.serving.embedded.cache_attention import CacheSegment
from agentrl.serving.embedded.forward import RowModel
from agentrl.serving.embedded.kv_cache import KvCache
from agentrl.train.backends.choose import make_backend
from agentrl.train.model.attention import reading_of_model
from agentrl.train.model.reading import Reading

TOLERANCE = 2e-6
"""Nats. Norms, routers and rotary tables of many models are in float32, whatever the rest is."""
GRADIENT_TOLERANCE = 5e-5
"""Share of a gradient's size; float32 in the middle of a layer counts more there."""
RIGHT, ROWS, REFUSED, WRONG, ERROR, UNBUILT = (
    "right", "row by row", "refused", "WRONG", "ERROR", "not built",
)  # fmt: skip


@dataclass(slots=True)
class Found:
    """Readings of one family."""

    kind: str
    trainer: str = ""
    """`right` packed and shared, `row by row`, or what is wrong with it."""
    packed: float | None = None
    """Largest difference of a log-probability, in nats."""
    shared: float | None = None
    gradient: float | None = None
    """Largest difference of a gradient, as a share of the largest one of its tensor."""
    engine: str = ""
    decoded: float | None = None
    why: str = ""
    why_engine: str = ""

    @property
    def is_bad(self) -> bool:
        """A family that is computed wrongly, or ends in an error of another program."""
        return bool({self.trainer, self.engine} & {WRONG, ERROR})


def look_at(kind: str, device: str = "cpu") -> Found:
    """Build a family and compare it on a device; its weights are drawn on the CPU."""
    found = Found(kind=kind)
    try:
        model = build(kind).to(device)
    except Exception as error:
        found.trainer = found.engine = UNBUILT
        found.why = _words(error)
        return found
    _look_at_engine(model, found)
    _look_at_trainer(model, found)
    return found


def rows_of(seed: int = 0) -> list[Row]:
    """Three rows that share 9 tokens, two of them 14, and one of its own."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(3, VOCABULARY, 90).tolist()
    prompt, turn = ids[:9], ids[9:14]
    texts = [
        (prompt + turn + ids[14:29], 9),
        (prompt + turn + ids[29:37], 9),
        (prompt + ids[37:38], 9),
        (ids[38:69], 4),
    ]
    return [
        Row(
            key=RowKey(group_id="g", rollout_id=str(index), row_index=0),
            input_ids=np.array(text), prompt_length=start,
            mask_R=np.ones(len(text) - start, bool), sampled_R=np.ones(len(text) - start, bool),
            rollout_log_probs_R=np.zeros(len(text) - start),
            advantages_R=np.zeros(len(text) - start), weight=1.0, temperature=1.0,
        )
        for index, (text, start) in enumerate(texts)
    ]  # fmt: skip


@contextmanager
def exact_softmax() -> Iterator[None]:
    """Inside, models that sum their attention in float32 do it in float64, as the rest of them."""
    own = functional.softmax

    def softmax(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if input.dtype == torch.float64:
            kwargs.pop("dtype", None)
        return own(input, *args, **kwargs)

    functional.softmax = softmax
    try:
        yield
    finally:
        functional.softmax = own


def own_log_probs(model: Any, row: Row) -> Tensor:
    """[R] Log-probabilities of the response tokens by the model's own forward."""
    ids = torch.as_tensor(row.input_ids, device=model.device)
    logits = model(input_ids=ids[None], use_cache=False).logits[0]
    at = torch.arange(row.prompt_length - 1, len(ids) - 1, device=ids.device)
    return torch.log_softmax(logits.double(), -1)[at, ids[row.prompt_length :]]


def _weighted(log_probs: Tensor) -> Tensor:
    """The sum whose gradient is compared: each token counts otherwise."""
    counts = torch.linspace(-1.0, 1.5, len(log_probs), dtype=torch.float64)
    return (log_probs * counts.to(log_probs.device)).sum()


def _look_at_trainer(model: Any, found: Found) -> None:
    rows = rows_of()
    with exact_softmax():
        try:
            own = torch.cat([own_log_probs(model, row) for row in rows])
            _weighted(own).backward()
        except Exception as error:
            found.trainer, found.why = UNBUILT, "its own forward: " + _words(error)
            return
        if not torch.isfinite(own).all():
            found.trainer, found.why = UNBUILT, "its own forward is not finite"
            return
        gradients = _take_gradients(model)
        try:
            for sharing in (False, True):
                # Recomputed activations are those of the first time in every family.
                again = sharing and model.supports_gradient_checkpointing
                backend = make_backend(
                    model, train=TrainSection(), gradient_checkpointing=again, ranks=None
                )
                micro = pack_micro_batch(rows, prefix_sharing=sharing)
                with backend.running():
                    got = backend.log_probs(backend.to_tensors(micro)).log_probs_R
                    backend.backward(_weighted(got))
                off = float((got.detach() - own.detach()).abs().max())
                setattr(found, "shared" if sharing else "packed", off)
                off = _largest_difference(_take_gradients(model), gradients)
                found.gradient = max(off, found.gradient or 0.0)
        except AgentrlError as error:
            found.trainer, found.why = REFUSED, _words(error)
            return
        except Exception as error:
            found.trainer, found.why = ERROR, _words(error)
            return
    limits = (TOLERANCE, TOLERANCE, GRADIENT_TOLERANCE)
    offs = zip((found.packed, found.shared, found.gradient), limits, strict=True)
    close = all(off is not None and off <= limit for off, limit in offs)
    found.trainer = (ROWS if reading_of_model(model) is Reading.ROWS else RIGHT) if close else WRONG


def _take_gradients(model: Any) -> dict[str, Tensor]:
    """The gradients of all weights, which are none afterwards."""
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def _largest_difference(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    worst = 0.0
    for name, exact in want.items():
        size = float(exact.abs().max())
        if size > 1e-9:
            near = got.get(name, torch.zeros_like(exact))
            worst = max(worst, float((near - exact).abs().max()) / size)
    return worst


def _look_at_engine(model: Any, found: Found) -> None:
    rows = rows_of()[:3]
    own_attention = model.config.get_text_config()._attn_implementation
    try:
        with exact_softmax(), torch.no_grad():
            own = [own_log_probs(model, row) for row in rows]
    except Exception:
        found.engine = UNBUILT
        return
    try:
        with torch.no_grad():
            got = decoded(RowModel(model), rows)
    except AgentrlError as error:
        found.engine, found.why_engine = REFUSED, _words(error)
        return
    except Exception as error:
        found.engine, found.why_engine = ERROR, _words(error)
        return
    finally:
        model.config.get_text_config()._attn_implementation = own_attention
    found.decoded = max(float((a - b).abs().max()) for a, b in zip(got, own, strict=True))
    found.engine = RIGHT if found.decoded <= TOLERANCE else WRONG


def decoded(model: RowModel, rows: Sequence[Row]) -> list[Tensor]:
    """Log-probabilities of the responses, token after token, prompts side by side before them."""
    cache = KvCache(
        num_layers=model.num_layers, num_rows=len(rows), num_heads=model.num_kv_heads,
        max_tokens=64, head_dim=model.head_dim, dtype=model.dtype, device=model.device,
    )  # fmt: skip
    prompts = [row.input_ids[: row.prompt_length].tolist() for row in rows]
    for index in range(len(rows)):
        cache.claim(str(index))
    segments = [CacheSegment(row=i, start=0, ids=ids) for i, ids in enumerate(prompts)]
    logits = model.prefill(cache, segments)
    for index, ids in enumerate(prompts):
        cache.append_ids(index, ids)
    responses = [row.input_ids[row.prompt_length :].tolist() for row in rows]
    found: list[list[Tensor]] = [[] for _ in rows]
    for step in range(max(map(len, responses))):
        ids = [response[min(step, len(response) - 1)] for response in responses]
        log_probs = torch.log_softmax(logits.double(), -1)
        for index, response in enumerate(responses):
            if step < len(response):
                found[index].append(log_probs[index, response[step]])
        logits = model.decode(cache, ids)
        for index, token in enumerate(ids):
            cache.append_ids(index, (token,))
    return [torch.stack(row) for row in found]


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def counts(found: Sequence[Found]) -> dict[str, dict[str, int]]:
    """Families by what became of them, in the trainer and in the engine."""
    return {
        "trainer": dict(Counter(one.trainer for one in found)),
        "engine": dict(Counter(one.engine for one in found)),
    }


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description="Compare families with themselves.")
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--all", action="store_true", help="every causal family of transformers")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.utils.logging.set_verbosity_error()
    every = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    kinds = options.kinds or (every if options.all else list(TRAINED))
    found = []
    for kind in kinds:
        one = look_at(kind, options.device)
        readings = {key: value for key, value in asdict(one).items() if value not in ("", None)}
        print(json.dumps(readings), flush=True)
        found.append(one)
    print(json.dumps(counts(found)))
    return int(any(one.is_bad for one in found))


if __name__ == "__main__":
    sys.exit(main())
