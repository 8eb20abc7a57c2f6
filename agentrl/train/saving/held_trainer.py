"""All that a checkpoint holds of a trained policy at one moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.train.saving.held_policy import hold_policy
from agentrl.train.saving.snapshot import StateSnapshot

if TYPE_CHECKING:
    from agentrl.train.trainer import Trainer


def hold_trained(model: Any, tokenizer: Any, trainer: Trainer) -> Callable[[Path], None]:
    """Hold this rank's part of weights and trainer state as they are now; all ranks call.

    Args:
        model: that the trainer trains.
        tokenizer: of the model.
        trainer: copies what is not written yet before it moves weights.

    Returns:
        Writes the part into a folder, once, from any thread; talks to no other rank.
    """
    snapshot = StateSnapshot()
    # First what ranks do together: one that fails alone keeps none of them waiting.
    policy = hold_policy(model, tokenizer, trainer.backend, snapshot)
    state = trainer.hold(snapshot)

    def write(folder: Path) -> None:
        try:
            policy.write(folder)
            state.write(folder)
        finally:
            snapshot.drop()

    return write
