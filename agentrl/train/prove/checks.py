"""The proofs: one gradient under every division, and nothing masked in it.

Each compares with the same reference, the whole update in one micro-batch on one rank. A loss that
divides by what it sees in its micro-batch fails the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from agentrl.batch.records import LossNeeds, PackedBatch
from agentrl.config.presets import Bounds
from agentrl.config.schema import AlgorithmSection
from agentrl.errors import ConfigError
from agentrl.estimators import find_estimator
from agentrl.finding import Status, any_failed
from agentrl.train.losses import needs_of
from agentrl.train.prove.compare import MOST_NAMED, ProofFinding, compared, failed
from agentrl.train.prove.estimator import estimator_checks
from agentrl.train.prove.evaluate import (
    Division,
    Policies,
    UpdateOutcome,
    build_update,
    evaluate,
    tokens_of,
)
from agentrl.train.prove.model import exact_model, neighbour
from agentrl.train.prove.poison import poisoned
from agentrl.train.prove.rollouts import random_groups, shuffled, split_rollouts
from agentrl.types import TrajectoryGroup

_WHOLE = Division(name="whole")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """All checks of one algorithm."""

    checks: tuple[ProofFinding, ...]
    """Findings in the order they were made."""

    @property
    def passed(self) -> bool:
        """True if no check failed; warnings do not count."""
        return not any_failed(self.checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """What all checks work with."""

    policies: Policies
    algorithm: AlgorithmSection
    needs: LossNeeds
    clip_shaped: Bounds | None
    groups: list[TrajectoryGroup]

    def update(
        self,
        division: Division,
        groups: list[TrajectoryGroup] | None = None,
        needs: LossNeeds | None = None,
    ) -> PackedBatch:
        return build_update(
            groups or self.groups,
            division,
            policies=self.policies,
            algorithm=self.algorithm,
            needs=needs or self.needs,
            clip_shaped=self.clip_shaped,
        )

    def outcome(
        self, update: PackedBatch, *, ranks: int = 1, poison: Mapping[str, float] | None = None
    ) -> UpdateOutcome:
        return evaluate(
            update,
            policies=self.policies,
            algorithm=self.algorithm,
            needs=self.needs,
            ranks=ranks,
            poison=poison,
        )


def prove(
    algorithm: AlgorithmSection,
    *,
    clip_shaped: Bounds | None = None,
    base: Path | None = None,
    seed: int = 0,
) -> Proof:
    """Run an algorithm's estimator and loss on a tiny model and compare what must be equal.

    Args:
        algorithm: resolved.
        clip_shaped: `reward.clip_shaped`.
        base: folder that relative file paths in `algorithm` start from.
        seed: of the rollouts; those of any seed have to pass.

    Raises:
        ConfigError: there is no such estimator or loss.
    """
    spec = find_estimator(algorithm.advantage_estimator, base=base)
    model = exact_model(seed=seed)
    policies = Policies(
        now=model,
        old=neighbour(model, seed=seed + 1, noise=0.02),
        ref=neighbour(model, seed=seed + 2, noise=0.05),
    )
    bench = _Bench(
        policies=policies,
        algorithm=algorithm,
        needs=needs_of(algorithm, base=base),
        clip_shaped=clip_shaped,
        groups=random_groups(policies.old, seed=seed),
    )
    checks = estimator_checks(
        spec, bench.groups, algorithm=algorithm, clip_shaped=clip_shaped, seed=seed
    )
    if checks[0].status is Status.FAIL:
        return Proof(checks=tuple(checks))
    try:
        update = bench.update(_WHOLE)
        whole = bench.outcome(update)
    except ConfigError:
        raise
    except Exception as error:  # a user's loss may raise anything; this is the boundary
        return Proof(checks=(*checks, failed("runs", f"{type(error).__name__}: {error}")))
    checks.append(_finite(whole))
    if checks[-1].status is Status.FAIL:
        return Proof(checks=tuple(checks))
    for name, make in _comparisons(bench, whole):
        try:
            checks.append(make())
        except Exception as error:  # the same boundary
            checks.append(failed(name, f"{type(error).__name__}: {error}"))
    return Proof(checks=tuple(checks))


def _comparisons(
    bench: _Bench, whole: UpdateOutcome
) -> Iterator[tuple[str, Callable[[], ProofFinding]]]:
    """Name and way to make each of the checks that compare with the reference."""
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
    clean = cache(lambda: _unpoisoned(bench, 2 * small))
    for name, value in (("NaN", float("nan")), ("1e4", 1e4)):
        for field in ("rollout_log_probs", "advantages", "weights", "old", "ref"):
            title = f"{name} in masked {field}"
            yield (
                title,
                lambda field=field, title=title, value=value: _poison_check(
                    bench, clean(), title, field, value
                ),
            )
    title = "random masked targets"
    yield title, lambda: _poison_check(bench, clean(), title, "ids", 0)
    yield "on-policy identity", lambda: _identity_check(bench)


def _smallest_budget(bench: _Bench) -> int:
    """Tokens of the longest row, or of the longest rollout where it must stay whole."""
    return max(
        len(row.prompt_ids) + len(row.response_ids)
        for group in bench.groups
        for row in group.trajectories
    )


def _finite(whole: UpdateOutcome) -> ProofFinding:
    bad = [name for name, grad in whole.gradient.items() if not torch.isfinite(grad).all()]
    size = sum(float(grad.square().sum()) for grad in whole.gradient.values()) ** 0.5
    if bad:
        slopes = [str(key) for key, slope in whole.slopes.items() if not np.isfinite(slope)]
        where = ", ".join(slopes[:MOST_NAMED]) or "no token alone"
        return failed("runs", f"the gradient of {bad[0]} is not finite; tokens: {where}")
    if not np.isfinite(whole.loss):
        return failed("runs", f"the gradient is finite, but the loss is {whole.loss}")
    if size == 0.0:
        return failed("runs", "the gradient is zero, there is nothing to compare")
    tokens = sum(slope != 0.0 for slope in whole.slopes.values())
    detail = f"{tokens} tokens have a gradient"
    return ProofFinding(name="runs", status=Status.OK, detail=detail)


def _division_check(
    bench: _Bench, whole: UpdateOutcome, division: Division, groups: list[TrajectoryGroup]
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


def _zero_rows_check(bench: _Bench, whole: UpdateOutcome) -> ProofFinding:
    """Rows whose advantage is zero are not computed unless the loss says that they matter."""
    needs = replace(bench.needs, zero_advantage_rows=True)
    other = bench.outcome(bench.update(_WHOLE, needs=needs))
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


def _unpoisoned(bench: _Bench, micro_batch_tokens: int) -> _Clean:
    update = bench.update(Division(name="clean", micro_batch_tokens=micro_batch_tokens))
    return _Clean(update=update, outcome=bench.outcome(update))


def _poison_check(
    bench: _Bench, known: _Clean, name: str, field: str, value: float
) -> ProofFinding:
    """The same bits, whatever stands where the loss does not look."""
    update, clean = known.update, known.outcome
    if field in ("old", "ref"):
        dirty = bench.outcome(update, poison={field: value})
    else:
        rng = np.random.default_rng(0)
        micros = tuple(poisoned(m, bench.needs, field, value, rng) for m in update.micro_batches)
        dirty = bench.outcome(replace(update, micro_batches=micros))
    changed = [key for key in clean.slopes if clean.slopes[key] != dirty.slopes.get(key)]
    if changed:
        named = ", ".join(map(str, changed[:MOST_NAMED]))
        return failed(name, f"reaches the gradient of {len(changed)} tokens: {named}")
    same = all(torch.equal(clean.gradient[key], dirty.gradient[key]) for key in clean.gradient)
    if not same or clean.loss != dirty.loss:
        return failed(name, f"the loss is {dirty.loss} instead of {clean.loss}")
    metrics = [key for key in clean.metrics if clean.metrics[key] != dirty.metrics.get(key)]
    if metrics or len(clean.metrics) != len(dirty.metrics):
        return failed(name, f"reaches metrics: {', '.join(metrics[:MOST_NAMED])}")
    return ProofFinding(name=name, status=Status.OK)


def _identity_check(bench: _Bench) -> ProofFinding:
    """At ratio 1, without a penalty, a policy loss usually has the gradient of REINFORCE."""
    update = bench.update(_WHOLE)
    free = bench.algorithm.model_copy(update={"kl_coef": 0.0})
    found = evaluate(
        update, policies=bench.policies, algorithm=free, needs=bench.needs, on_policy=True
    )
    want = {
        key: -weight * advantage if trained else 0.0
        for micro in update.micro_batches
        for key, weight, advantage, trained in zip(
            tokens_of(micro), micro.weights_R, micro.advantages_R, micro.mask_R, strict=True
        )
    }
    largest = max(map(abs, want.values()), default=0.0) or 1.0
    off = [key for key, slope in found.slopes.items() if abs(slope - want[key]) > 1e-12 * largest]
    named = ", ".join(
        f"{key}: {found.slopes[key]:.4g}, REINFORCE {want[key]:.4g}" for key in off[:1]
    )
    return ProofFinding(
        name="on-policy identity",
        status=Status.WARN if off else Status.OK,
        detail=f"another gradient than REINFORCE at {len(off)} tokens ({named})" if off else "",
    )
