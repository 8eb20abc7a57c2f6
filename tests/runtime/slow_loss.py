"""A project whose training steps last as long as a test wants them to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from agentrl.data import TrajectoryStore
from agentrl.disk.checkpoint import Checkpoint, latest_checkpoint
from agentrl.disk.stored_groups import stored_groups
from tests.runtime.tiny_project import write_project

LOSS = '''
"""The clipped loss, slow from a step of the run `tiny` on while there is a file `slow`."""

import time
from pathlib import Path

from agentrl.train.losses.policy import ppo_clip as clipped

FOLDER = Path(__file__).parent
STORED = FOLDER / "runs" / "tiny" / "trajectories" / "train"
SLOW_FROM = int((FOLDER / "slow_from").read_text())


def slow(inputs):
    # A step is stored before it trains.
    if (FOLDER / "slow").exists() and len(list(STORED.glob("*.parquet"))) >= SLOW_FROM:
        (FOLDER / "sleeps").touch()
        time.sleep(float((FOLDER / "slow").read_text()))
    return clipped(inputs)
'''


def write_slow_project(folder: Path, *, slow_from: int, **changes: Any) -> Path:
    """Write a project with this loss.

    Args:
        folder: made if needed.
        slow_from: the first step whose micro-batches take as many seconds as `slow` says.
        changes: as of `write_project`.
    """
    path = write_project(
        folder,
        algorithm={"policy_loss": "slow.py:slow"},
        checkpoint={"every_steps": 10},
        eval={"datasets": {}},
        **changes,
    )
    (folder / "slow.py").write_text(LOSS)
    (folder / "slow_from").write_text(str(slow_from))
    return path


def sampled(run: Path) -> list[tuple[str, tuple[int, ...]]]:
    """Rollouts that were trained, in order, with their tokens."""
    store = TrajectoryStore(run / "trajectories")
    return [
        (row.rollout_id, row.response_ids)
        for step in store.steps("train")
        for group in stored_groups(store, "train", step)
        for row in group.trajectories
    ]


def assert_same_weights(one: Path, other: Path) -> None:
    """The last checkpoints of two runs hold the same step and the same bits."""
    from transformers import AutoModelForCausalLM

    found = [last_checkpoint(run) for run in (one, other)]
    assert found[0].state.step == found[1].state.step
    models = [AutoModelForCausalLM.from_pretrained(c.path, dtype=torch.float32) for c in found]
    pairs = zip(*(model.named_parameters() for model in models), strict=True)
    for (name, ours), (_, theirs) in pairs:
        assert torch.equal(ours, theirs), name


def last_checkpoint(run: Path) -> Checkpoint:
    """The newest checkpoint of a run, which has one."""
    checkpoint = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None, list((run / "checkpoints").glob("*"))
    return checkpoint
