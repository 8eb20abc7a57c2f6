"""The proofs: one gradient under every division, and nothing masked in it.

Each compares with the same reference, the whole update in one micro-batch on one rank. A loss that
divides by what it sees in its micro-batch fails the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from agentrl.batch.records import PackedBatch
from agentrl.config.presets import Bounds
from agentrl.config.schema import AlgorithmSection
from agentrl.errors import ConfigError
from agentrl.estimators import find_estimator
from agentrl.train.losses import needs_of
from agentrl.train.prove.bench import WHOLE, Bench, top_k_of, with_few_likeliest
from agentrl.train.prove.compare import (
    MOST_NAMED,
    ProofFinding,
    compared,
    failed,
    not_finite,
    same_bits,
)
from agentrl.train.prove.counting import counting_check
from agentrl.train.prove.direction import direction_check
from agentrl.train.prove.estimator import estimator_checks
from agentrl.train.prove.evaluate import Division, UpdateOutcome
from agentrl.train.prove.model import exact_model, neighbour
from agentrl.train.prove.poison import poisoned
from agentrl.train.prove.policies import model_policies
from agentrl.train.prove.precision import apart, tolerance_of
from agentrl.train.prove.rollouts import random_groups, shuffled, split_rollouts
from agentrl.train.prove.sizes import ProbeSizes, size_checks
from agentrl.train.prove.tokens import tokens_of
from agentrl.types import TrajectoryGroup
from agentrl.types.finding import Status, any_failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """All checks of one algorithm."""

    checks: tuple[ProofFinding, ...]
    """Findings in the order they were made."""

    @property
    def passed(self) -> bool:
        """True if no check failed; warnings do not count."""
        return not any_failed(self.checks)


def prove(
    algorithm: AlgorithmSection,
    *,
    clip_shaped: Bounds | None = None,
    base: Path | None = None,
    seed: int = 0,
    sizes: ProbeSizes | None = None,
) -> Proof:
    """Run an algorithm's estimator and loss on a tiny model and compare what must be equal.

    Args:
        algorithm: resolved.
        clip_shaped: `reward.clip_shaped`.
        base: folder that relative file paths in `algorithm` start from.
        seed: of the rollouts; those of any seed have to pass.
        sizes: of the run, which the loss is tried at too; default those of `ProbeSizes`.

    Raises:
        ConfigError: there is no such estimator or loss.
    """
    spec = find_estimator(algorithm.advantage_estimator, base=base)
    model = exact_model(seed=seed)
    old = neighbour(model, seed=seed + 1, noise=0.02)
    ref = neighbour(model, seed=seed + 2, noise=0.05)
    teacher = neighbour(model, seed=seed + 3, noise=0.1)
    groups = random_groups(old, seed=seed)
    algorithm = with_few_likeliest(algorithm)
    policies = model_policies(
        groups, model=model, old=old, ref=ref, teacher=teacher, top_k=top_k_of(algorithm)
    )
    bench = Bench(
        policies=policies,
        algorithm=algorithm,
        needs=needs_of(algorithm, base=base),
        clip_shaped=clip_shaped,
        groups=groups,
    )
    checks = estimator_checks(
        spec, bench.groups, algorithm=algorithm, clip_shaped=clip_shaped, seed=seed
    )
    if checks[0].status is Status.FAIL:
        return Proof(checks=tuple(checks))
    try:
        update = bench.update(WHOLE)
        whole = bench.outcome(update)
    except ConfigError:
        raise
    except Exception as error:  # a user's loss may raise anything; this is the boundary
        return Proof(checks=(*checks, failed("runs", f"{type(error).__name__}: {error}")))
    checks.append(_finite(whole))
    if checks[-1].status is Status.FAIL:
        return Proof(checks=tuple(checks))
    comparisons = chain(
        _divisions(bench, whole),
        _slopes(bench, replace(bench, policies=policies.table), update),
        size_checks(bench, sizes or ProbeSizes(), seed=seed),
    )
    for name, make in comparisons:
        try:
            checks.append(make())
        except Exception as error:  # the same boundary
            checks.append(failed(name, f"{type(error).__name__}: {error}"))
    return Proof(checks=tuple(checks))


def _divisions(
    bench: Bench, whole: UpdateOutcome
) -> Iterator[tuple[str, Callable[[], ProofFinding]]]:
    """Name and way to make each of the checks that compare the gradient with the reference."""
    small = _smallest_budget(bench)
    split = split_rollouts(bench.groups)
    ways: list[tuple[Division, list[TrajectoryGroup]]] = [
        (Division(name="smallest micro-batches", micro_batch_tokens=small), bench.groups),
        (Division(name="middling micro-batches", micro_batch_tokens=2 * small), bench.groups),
        (Division(name="2 ranks", micro_batch_tokens=small, ranks=2), bench.groups),
        (Division(name="3 ranks", micro_batch_tokens=2 * small, ranks=3), bench.groups),
        (
            Division(name="another order", micro_batch_tokens=2 * small),
            shuffled(bench.groups, seed=1),
        ),
        (Division(name="split rollouts", micro_batch_tokens=small), split),
        (Division(name="shared prefixes", prefix_sharing=True), bench.groups),
        (
            Division(
                name="split, shared, 3 ranks, small",
                micro_batch_tokens=small,
                ranks=3,
                prefix_sharing=True,
            ),
            shuffled(split, seed=2),
        ),
    ]
    for division, groups in ways:
        yield (
            division.name,
            lambda division=division, groups=groups: _division_check(
                bench, whole, division, groups
            ),
        )
    yield "rows without advantage", lambda: _zero_rows_check(bench, whole)


def _slopes(
    bench: Bench, table: Bench, update: PackedBatch
) -> Iterator[tuple[str, Callable[[], ProofFinding]]]:
    """Name and way to make each of the checks that look at the slopes of tokens.

    A gradient is the slopes times what the model makes of them, so a table of its numbers shows the
    same; only targets are read by the model itself.
    """
    middling = 2 * _smallest_budget(bench)
    clean = cache(lambda: _unpoisoned(table, middling))
    for name, value in (("NaN", float("nan")), ("1e4", 1e4)):
        fields = ["rollout_log_probs", "advantages", "weights", "old", "ref"]
        fields += [] if table.algorithm.distill is None else ["teacher"]
        for field in fields:
            title = f"{name} in masked {field}"
            yield (
                title,
                lambda field=field, title=title, value=value: _poison_check(
                    table, clean(), title, field, value
                ),
            )
    title = "random masked targets"
    read = cache(lambda: _unpoisoned(bench, middling))
    yield title, lambda: _poison_check(bench, read(), title, "ids", 0)
    yield "masks of sum and count", lambda: counting_check(table, update)
    yield "direction", lambda: direction_check(table, "direction")
    yield "on-policy identity", lambda: _identity_check(table, update)


def _smallest_budget(bench: Bench) -> int:
    """Tokens of the longest row, or of the longest rollout where it must stay whole."""
    return max(
        len(row.prompt_ids) + len(row.response_ids)
        for group in bench.groups
        for row in group.trajectories
    )


def _finite(whole: UpdateOutcome) -> ProofFinding:
    bad = not_finite(whole)
    if not bad and not any(bool(grad.any()) for grad in whole.gradient.values()):
        bad = "the gradient is zero, there is nothing to compare"
    if bad:
        return failed("runs", bad)
    tokens = sum(slope != 0.0 for slope in whole.slopes.values())
    dtype = str(whole.dtype).removeprefix("torch.")
    detail = f"{tokens} tokens have a gradient"
    if whole.dtype is not torch.float64:
        detail += f"; computed in {dtype}: up to {tolerance_of(whole.dtype):.1e} counts as equal"
    return ProofFinding(name="runs", status=Status.OK, detail=detail)


def _division_check(
    bench: Bench, whole: UpdateOutcome, division: Division, groups: list[TrajectoryGroup]
) -> ProofFinding:
    if bench.needs.whole_rollouts and groups is not bench.groups and not division.prefix_sharing:
        # The rows of a rollout repeat what came before: together they need more room.
        longest = max(
            sum(len(row.prompt_ids) + len(row.response_ids) for row in rows)
            for group in groups
            for rows in group.rollouts()
        )
        division = replace(division, micro_batch_tokens=max(division.micro_batch_tokens, longest))
    other = bench.outcome(bench.update(division, groups), ranks=division.ranks)
    return compared(division.name, whole, other)


def _zero_rows_check(bench: Bench, whole: UpdateOutcome) -> ProofFinding:
    """Rows whose advantage is zero are not computed unless the loss declares that they matter."""
    needs = replace(bench.needs, zero_advantage_rows=True)
    other = bench.outcome(bench.update(WHOLE, needs=needs))
    found = compared("rows without advantage", whole, other)
    if found.status is Status.OK:
        # Metrics are means over what is computed.
        return replace(found, detail="")
    unseen = [key for key in other.slopes.keys() - whole.slopes.keys() if other.slopes[key]]
    if unseen:
        named = ", ".join(map(str, sorted(unseen)[:MOST_NAMED]))
        text = f"{len(unseen)} tokens have a gradient: declare zero_advantage_rows=True; {named}"
        return replace(found, detail=text)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clean:
    """What poison is put into, and what comes out without it."""

    update: PackedBatch
    outcome: UpdateOutcome


def _unpoisoned(bench: Bench, micro_batch_tokens: int) -> _Clean:
    update = bench.update(Division(name="clean", micro_batch_tokens=micro_batch_tokens))
    return _Clean(update=update, outcome=bench.outcome(update, dtypes=False))


def _poison_check(bench: Bench, known: _Clean, name: str, field: str, value: float) -> ProofFinding:
    """The same bits, whatever stands where the loss does not look."""
    update, clean = known.update, known.outcome
    if field in ("old", "ref", "teacher"):
        dirty = bench.outcome(update, poison={field: value}, dtypes=False)
    else:
        rng = np.random.default_rng(0)
        micros = tuple(poisoned(m, bench.needs, field, value, rng) for m in update.micro_batches)
        dirty = bench.outcome(replace(update, micro_batches=micros), dtypes=False)
    return same_bits(name, clean, dirty)


def _identity_check(bench: Bench, update: PackedBatch) -> ProofFinding:
    """At ratio 1, without a penalty, a policy loss usually has the gradient of REINFORCE."""
    found = bench.on_policy(update)
    want = {
        key: -weight * advantage if trained else 0.0
        for micro in update.micro_batches
        for key, weight, advantage, trained in zip(
            tokens_of(micro), micro.weights_R, micro.advantages_R, micro.mask_R, strict=True
        )
    }
    largest = max(map(abs, want.values()), default=0.0) or 1.0
    least = tolerance_of(found.dtype) * largest
    off = [key for key, slope in found.slopes.items() if abs(slope - want[key]) > least]
    named = ""
    for key in off[:1]:
        slope, plain = apart(found.slopes[key], want[key])
        named = f"{key}: {slope}, REINFORCE {plain}"
    return ProofFinding(
        name="on-policy identity",
        status=Status.WARN if off else Status.OK,
        detail=f"another gradient than REINFORCE at {len(off)} tokens ({named})" if off else "",
    )
