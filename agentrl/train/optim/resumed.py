"""Lines about a resumed run: settings that are not those it stopped with, and what they move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.config.schema import TrainSection
from agentrl.train.optim.schedule import learning_rate

STEPS = "train.steps"


def resume_notes(
    changed: Mapping[str, tuple[Any, Any]], train: TrainSection, *, done: int
) -> list[str]:
    """Keys with another value than before, and a learning rate that they move.

    Args:
        changed: by key, the value before and the one now.
        train: the schedule now.
        done: steps that are trained.
    """
    if not changed:
        return []
    named = ", ".join(f"{key} {old!r} -> {new!r}" for key, (old, new) in sorted(changed.items()))
    notes = [f"resumed with other settings: {named}"]
    old = changed.get(STEPS, (None,))[0]  # a fit need not name a number
    if old and train.schedule != "constant" and 0 < done < train.steps:
        before = train.model_copy(update={"steps": old})
        last, planned = learning_rate(done - 1, before), learning_rate(done, before)
        now = learning_rate(done, train)
        notes.append(
            f"train.schedule is {train.schedule} over train.steps, so the learning rate of step "
            f"{done + 1} is {now:.3g}; step {done} had {last:.3g}, and with {old} "
            f"steps it would be {planned:.3g}. To keep it low, lower train.learning_rate in a run "
            "that begins with this one's checkpoint"
        )
    return notes
