"""What a run must come to, however it was killed: one pass over its stored steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.batch import build_step
from agentrl.config import RunConfig, load_config
from agentrl.data import TrajectoryStore
from agentrl.runtime.checkpoint import Checkpoint, latest_checkpoint
from agentrl.runtime.collect import stable_seed
from agentrl.runtime.stored import stored_groups
from agentrl.types import TrajectoryGroup

BatchOf = Callable[[RunConfig, int, list[TrajectoryGroup]], Any]
"""The batch of a step."""


def plain_batch(config: RunConfig, step: int, groups: list[TrajectoryGroup]) -> Any:
    """Of a run that neither shapes nor filters rewards."""
    return build_step(
        groups,
        algorithm=config.resolved_algorithm(),
        micro_batch_tokens=config.train.micro_batch_tokens,
        seed=stable_seed(config.run.seed, "batch", step),
        prefix_sharing=config.train.prefix_sharing,
    )


def stored_tasks(run: Path) -> dict[int, list[str]]:
    store = TrajectoryStore(run / "trajectories")
    steps = store.steps("train")
    return {step: [g.task_id for g in stored_groups(store, "train", step)] for step in steps}


def assert_weights_are_one_pass_over_the_store(
    project: Path, run: Path, batch_of: BatchOf = plain_batch
) -> Checkpoint:
    """Train the first model on the stored steps, once each in order: the bits must be the same.

    Returns:
        The checkpoint they were compared with.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from agentrl.train import Trainer, load_pretrained

    config = load_config(project)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = load_pretrained(config.model).model
        trainer = Trainer(model, train=config.train, algorithm=config.resolved_algorithm())
        store = TrajectoryStore(run / "trajectories")
        for step in store.steps("train"):
            trainer.step(batch_of(config, step, stored_groups(store, "train", step)))
    finally:
        torch.set_num_threads(threads)
    checkpoint = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    saved = AutoModelForCausalLM.from_pretrained(checkpoint.path, dtype=torch.float32)
    for (name, ours), (_, theirs) in zip(
        model.named_parameters(), saved.named_parameters(), strict=True
    ):
        assert torch.equal(ours, theirs), name
    return checkpoint
