"""The proofs of a fit: one gradient under every division, nothing masked in it, and its direction.

Each compares with the same reference, the whole update in one micro-batch on one rank. A pair loss
that divides by the pairs it sees, or compares one pair with others, fails the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from agentrl.batch.examples import Example
from agentrl.batch.records import LossNeeds, MicroBatch, PackedBatch
from agentrl.config.fit import FitObjective
from agentrl.errors import ConfigError
from agentrl.fit.prove.bench import FitBench, make_bench, with_padding
from agentrl.fit.prove.directions import descent_check, direction_check, value_check
from agentrl.fit.prove.examples import random_examples
from agentrl.train.prove.checks import Proof
from agentrl.train.prove.compare import (
    ProofFinding,
    compared,
    failed,
    not_finite,
    same_bits,
)
from agentrl.train.prove.evaluate import Division, UpdateOutcome
from agentrl.train.prove.model import VOCABULARY
from agentrl.train.prove.poison import poisoned
from agentrl.train.prove.precision import tolerance_of
from agentrl.train.prove.sizes import LARGEST
from agentrl.types.finding import Status

_Checks = Iterator[tuple[str, Callable[[], ProofFinding]]]
_REACHED = "tokens or scores"
"""Name of each check, and way to make it."""


def prove_fit(
    objective: FitObjective,
    *,
    base: Path | None = None,
    seed: int = 0,
    micro_batch_tokens: int = 4096,
) -> Proof:
    """Run the objective of a fit on a tiny model and compare what must be equal.

    Args:
        objective: as in the config.
        base: folder that relative paths in it start from.
        seed: of the examples; those of any seed have to pass.
        micro_batch_tokens: of the fit; a size that the loss is tried at, at most `LARGEST`.

    Raises:
        ConfigError: there is no such loss.
    """
    examples = _examples(objective, seed=seed)
    try:
        bench = make_bench(objective, examples, base=base, seed=seed, table=False)
        table = make_bench(objective, examples, base=base, seed=seed, table=True)
        dtype = table.narrowest(table.update())
        whole = bench.outcome(bench.update(), dtype=dtype)
    except ConfigError:
        raise
    except Exception as error:  # a user's loss may raise anything; this is the boundary
        return Proof(checks=(failed("runs", f"{type(error).__name__}: {error}"),))
    checks = [_finite(whole)]
    if checks[0].status is Status.FAIL:
        return Proof(checks=tuple(checks))
    budget = min(max(micro_batch_tokens, 1024), LARGEST)
    for part in (
        _divisions(bench, whole),
        _poisons(bench),
        _directions(bench, table, whole),
        _sizes(objective, dtype, base=base, seed=seed, budget=budget),
    ):
        for name, make in part:
            try:
                checks.append(make())
            except Exception as error:  # the same boundary
                checks.append(failed(name, f"{type(error).__name__}: {error}"))
    return Proof(checks=tuple(checks))


def _examples(objective: FitObjective, *, seed: int, tokens: int = 0) -> list[Example]:
    verdicts = objective.kind == "dpo" and objective.unpaired
    pairs = objective.kind != "sft" and not verdicts
    return random_examples(pairs=pairs, seed=seed, tokens=tokens, verdicts=verdicts)


def _finite(whole: UpdateOutcome) -> ProofFinding:
    bad = not_finite(whole)
    if not bad and not any(bool(grad.any()) for grad in whole.gradient.values()):
        bad = "the gradient is zero, there is nothing to compare"
    if bad:
        return failed("runs", bad)
    count = sum(slope != 0.0 for slope in whole.slopes.values())
    detail = f"{count} tokens or scores have a gradient"
    if whole.dtype is not torch.float64:
        name = str(whole.dtype).removeprefix("torch.")
        detail += f"; computed in {name}: up to {tolerance_of(whole.dtype):.1e} counts as equal"
    return ProofFinding(name="runs", status=Status.OK, detail=detail)


def _divisions(bench: FitBench, whole: UpdateOutcome) -> _Checks:
    small = _smallest_budget(bench.examples)
    turned = list(reversed(bench.examples))
    mixed = [*turned[1::2], *turned[::2]]
    shared = Division(
        name="shared, 3 ranks, small", micro_batch_tokens=small, ranks=3, prefix_sharing=True
    )
    ways: list[tuple[Division, Sequence[Example]]] = [
        (Division(name="smallest micro-batches", micro_batch_tokens=small), bench.examples),
        (Division(name="middling micro-batches", micro_batch_tokens=2 * small), bench.examples),
        (Division(name="2 ranks", micro_batch_tokens=small, ranks=2), bench.examples),
        (Division(name="3 ranks", micro_batch_tokens=2 * small, ranks=3), bench.examples),
        (Division(name="another order", micro_batch_tokens=2 * small), turned),
        (Division(name="another order, whole"), mixed),
        (Division(name="shared prefixes", prefix_sharing=True), bench.examples),
        (shared, mixed),
    ]
    for division, examples in ways:
        yield (
            division.name,
            lambda division=division, examples=examples: _division_check(
                bench, whole, division, examples
            ),
        )


def _division_check(
    bench: FitBench, whole: UpdateOutcome, division: Division, examples: Sequence[Example]
) -> ProofFinding:
    update = bench.update(division, examples)
    other = bench.outcome(update, division=division, dtype=whole.dtype)
    return compared(division.name, whole, other)


def _smallest_budget(examples: Sequence[Example]) -> int:
    """Tokens of the largest example, which must stay whole."""
    return max(example.packed_tokens(prefix_sharing=False) for example in examples)


def _poisons(bench: FitBench) -> _Checks:
    """Name and way to make each check that puts something where no loss looks."""
    update = bench.update(
        Division(name="clean", micro_batch_tokens=2 * _smallest_budget(bench.examples))
    )
    clean = cache(lambda: bench.outcome(update))
    yield (
        "padding",
        lambda: same_bits(
            "padding", clean(), bench.outcome(with_padding(update)), reached=_REACHED
        ),
    )
    rng = np.random.default_rng(0)
    changes: dict[str, Callable[[MicroBatch], MicroBatch]] = {
        f"NaN in masked {field}": lambda micro, field=field: poisoned(
            micro, LossNeeds(), field, float("nan"), rng
        )
        for field in ("rollout_log_probs", "advantages", "weights")
    }
    changes["random masked targets"] = lambda micro: poisoned(micro, LossNeeds(), "ids", 0.0, rng)
    if bench.objective.kind == "rm":
        changes["random tokens behind answers"] = lambda micro: _other_ends(micro, rng)
    for title, change in changes.items():
        yield (
            title,
            lambda title=title, change=change: same_bits(
                title, clean(), bench.outcome(_changed(update, change)), reached=_REACHED
            ),
        )


def _changed(update: PackedBatch, change: Callable[[MicroBatch], MicroBatch]) -> PackedBatch:
    return replace(update, micro_batches=tuple(map(change, update.micro_batches)))


def _other_ends(micro: MicroBatch, rng: np.random.Generator) -> MicroBatch:
    """Other tokens at the end of each row, behind what is scored."""
    ends = np.cumsum(micro.lengths_S)[micro.segment_N] - 1
    ids = micro.input_ids_T.copy()
    ids[ends] = rng.integers(3, VOCABULARY, len(ends))
    return replace(micro, input_ids_T=ids)


def _directions(bench: FitBench, table: FitBench, whole: UpdateOutcome) -> _Checks:
    yield "descent", lambda: descent_check("descent", bench, whole)
    yield "direction", lambda: direction_check("direction", table, whole.dtype)
    yield "known slopes", lambda: value_check("known slopes", table, whole.dtype)


def _sizes(
    objective: FitObjective, dtype: torch.dtype, *, base: Path | None, seed: int, budget: int
) -> _Checks:
    """A fault may act only in a micro-batch above some size, or among many examples."""
    title = f"micro-batches to {budget} tokens"
    yield title, lambda: _size_check(title, objective, dtype, base=base, seed=seed, budget=budget)


def _size_check(
    title: str,
    objective: FitObjective,
    dtype: torch.dtype,
    *,
    base: Path | None,
    seed: int,
    budget: int,
) -> ProofFinding:
    examples = _examples(objective, seed=seed, tokens=4 * budget)
    bench = make_bench(objective, examples, base=base, seed=seed, table=True)
    whole = bench.outcome(bench.update(), dtype=dtype)
    bad = not_finite(whole)
    if bad:
        return failed(title, bad)
    worst: ProofFinding | None = None
    for tokens, ranks in ((128, 1), (1024, 8), (budget, 1)):
        division = Division(name=f"{tokens} tokens", micro_batch_tokens=tokens, ranks=ranks)
        other = bench.outcome(bench.update(division), division=division, dtype=dtype)
        found = compared(title, whole, other, against=f"in micro-batches of {tokens} tokens")
        if found.status is Status.FAIL:
            return found
        if worst is None or (found.error or 0.0) > (worst.error or 0.0):
            worst = found
    assert worst is not None
    return worst
