"""The order of tasks in an epoch, as a pure function of the seed, the epoch and the task ids.

No random generator takes part in it, only hashes and integers, so that every machine and every
later version gives the same order.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from agentrl.errors import DataError
from agentrl.types import Task


def epoch_order(
    tasks: Iterable[str], weights: Mapping[str, int] | None, *, seed: int, epoch: int
) -> list[str]:
    """Task ids in the order of an epoch.

    Args:
        tasks: ids of all of them.
        weights: how often each comes, as `whole_weights` gives them; None for each once.
        seed: of the run.
        epoch: from 0.

    Returns:
        As many ids as there are tasks; with weights one may be there several times or not at all.
    """
    order = _sorted_by_hash(tasks, seed, epoch)
    if weights is None:
        return order
    # Copies of one task go to slots of their own.
    copies: Counter[str] = Counter()
    slots: dict[str, str] = {}
    for name in _drawn(order, weights, f"{seed}/{epoch}"):
        slots[f"{copies[name]}/{name}"] = name
        copies[name] += 1
    return [slots[slot] for slot in _sorted_by_hash(slots, seed, epoch)]


def whole_weights(tasks: Mapping[str, Task], weights: Mapping[str, float]) -> dict[str, int]:
    """Weights as integers up to 2**32, so that no rounding of a machine takes part in an order.

    Raises:
        DataError: not one positive, finite number for each task.
    """
    bad = [name for name in tasks if not 0 < weights.get(name, 0.0) < math.inf]
    if bad:
        raise DataError(
            f"task weights must be positive and finite, one for each task; got "
            f"{weights.get(bad[0])!r} for task {bad[0]!r}"
        )
    largest = max(weights[name] for name in tasks)
    return {name: max(1, round(weights[name] / largest * 2**32)) for name in tasks}


def fingerprint(ids: Iterable[str], weights: Mapping[str, int] | None = None) -> str:
    """Hash of the ids and weights that an order depends on, whatever order they come in."""
    digest = hashlib.blake2b(digest_size=16)
    for task_id in sorted(ids):
        data = _bytes(task_id)
        # The length keeps ("ab", "c") apart from ("a", "bc").
        digest.update(len(data).to_bytes(8, "little") + data)
        if weights is not None:
            digest.update(weights[task_id].to_bytes(8, "little"))
    return digest.hexdigest()


def _drawn(order: Sequence[str], weights: Mapping[str, int], salt: str) -> list[str]:
    """As many tasks as there are, each as often as its weight asks, rounded up or down.

    Points at equal distances are laid over the weights, one after the other in the order given; a
    hash says where the first lies. Integers throughout.
    """
    count, total = len(order), sum(weights.values())
    digest = hashlib.blake2b(f"{salt}/draw".encode(), digest_size=8).digest()
    offset, whole = int.from_bytes(digest, "big"), 2**64
    drawn: list[str] = []
    reached = 0
    for name in order:
        reached += weights[name]
        # The next point is (len(drawn) + offset / whole) * total / count.
        while (len(drawn) * whole + offset) * total < reached * count * whole:
            drawn.append(name)
            if len(drawn) == count:
                return drawn
    return drawn


def _bytes(task_id: str) -> bytes:
    return task_id.encode("utf-8", "surrogatepass")


def _sorted_by_hash(ids: Iterable[str], seed: int, epoch: int) -> list[str]:
    salt = f"{seed}/{epoch}/".encode()
    return sorted(
        ids, key=lambda task_id: hashlib.blake2b(salt + _bytes(task_id), digest_size=16).digest()
    )
