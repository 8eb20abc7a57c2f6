"""The mask of a sum and the mask of its denominator must be the same.

A sum over tokens of the environment that is divided by the number of sampled tokens is the same
under every division of the work, so only a change of the counts shows it: with the count of one
mask doubled, the tokens whose slopes change are those that it divides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agentrl.batch.records import MaskCounts, PackedBatch
from agentrl.train.prove.bench import Bench
from agentrl.train.prove.compare import MOST_NAMED, ProofFinding, failed
from agentrl.train.prove.evaluate import UpdateOutcome, covered_R
from agentrl.train.prove.precision import apart, tolerance_of
from agentrl.train.prove.tokens import TokenKey, tokens_of
from agentrl.types.finding import Status


def counting_check(bench: Bench, update: PackedBatch) -> ProofFinding:
    """Double the counts of each declared mask, and look at whose slopes change.

    A token may be divided by the count of a mask that it is not under only as part of a union: it
    is also divided by that of a mask it is under, and tokens of the other mask by the same counts.
    """
    name = "masks of sum and count"
    whole = bench.outcome(update)
    doubled = {key: bench.outcome(_doubled(update, key), dtypes=False) for key in update.counts}
    under = _masks_of_tokens(update)
    divided = {token: _changed(token, whole, doubled) for token in whole.slopes}
    reasons: dict[tuple[str, frozenset[str]], list[TokenKey]] = {}
    for token, keys in divided.items():
        for key in keys - under[token]:
            part_of_union = bool(keys & under[token]) and any(
                key in under[other] and divided[other] == keys for other in divided
            )
            if not part_of_union:
                reasons.setdefault((key, under[token]), []).append(token)
    if not reasons:
        return ProofFinding(name=name, status=Status.OK)
    (key, own), tokens = max(reasons.items(), key=lambda item: len(item[1]))
    shown = []
    for token in sorted(tokens)[:MOST_NAMED]:
        now, then = apart(whole.slopes[token], doubled[key].slopes[token])
        shown.append(f"{token} ({now} becomes {then} when that count doubles)")
    return failed(
        name,
        f"{len(tokens)} tokens that are not under {key} are divided by its count; sum and count "
        f"have to be over one mask, here {' or '.join(sorted(own)) or 'none that is declared'}: "
        f"inputs.aggregate(..., mask=...) does both; {', '.join(shown)}",
    )


def _doubled(update: PackedBatch, key: str) -> PackedBatch:
    known = update.counts[key]
    more = MaskCounts(
        batch_num_tokens=2 * known.batch_num_tokens,
        global_valid_samples=2 * known.global_valid_samples,
    )
    return replace(update, counts={**update.counts, key: more})


def _masks_of_tokens(update: PackedBatch) -> dict[TokenKey, frozenset[str]]:
    """Declared masks that each token is under."""
    found: dict[TokenKey, frozenset[str]] = {}
    for micro in update.micro_batches:
        covered = {key: covered_R(micro, key) for key in update.counts}
        for index, token in enumerate(tokens_of(micro)):
            found[token] = frozenset(key for key, mask_R in covered.items() if mask_R[index])
    return found


def _changed(
    token: TokenKey, whole: UpdateOutcome, doubled: Mapping[str, UpdateOutcome]
) -> frozenset[str]:
    """Masks whose count divides what the token adds to the loss."""
    slope = whole.slopes[token]
    least = tolerance_of(whole.dtype) * abs(slope)
    return frozenset(
        key for key, other in doubled.items() if abs(other.slopes[token] - slope) > least
    )
