"""What a run must come to, however it was killed: one pass over its stored steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.batch import StepSettings, build_step
from agentrl.config import RunConfig, load_config
from agentrl.config.plan import plan_run
from agentrl.data import TrajectoryStore
from agentrl.disk.checkpoint import Checkpoint, latest_checkpoint
from agentrl.disk.stored_groups import stored_groups
from agentrl.runtime.drivers.groups import stable_seed
from agentrl.types import TrajectoryGroup

ROUNDING = 1e-4
"""A learning rate of 0.01 moves weights by about a hundredth in one step."""

BatchOf = Callable[[RunConfig, int, list[TrajectoryGroup]], Any]
"""The batch of a step."""


def plain_batch(config: RunConfig, step: int, groups: list[TrajectoryGroup]) -> Any:
    """Of a run that neither shapes nor filters rewards."""
    return build_step(
        groups,
        StepSettings(
            algorithm=config.resolved_algorithm(),
            micro_batch_tokens=config.train.micro_batch_tokens,
            seed=stable_seed(config.run.seed, "batch", step),
            prefix_sharing=config.train.prefix_sharing,
        ),
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


def assert_state_is_about_one_pass_over_the_store(project: Path, run: Path) -> None:
    """Train the first models on the stored steps, once each in order, in this process.

    What more ranks sum up in another order differs by rounding, so this is what holds for them:
    weights, and what of critic, reference and KL controller a checkpoint has.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from agentrl.runtime.assembly.hints import open_hints
    from agentrl.runtime.assembly.step_batch import StepMaker
    from agentrl.runtime.assembly.trainer import make_trainer
    from agentrl.train.checkpoint import load_trainer_state
    from agentrl.train.model.load import load_trained

    config = load_config(project, ["runtime=local", "train.backend=torch"])
    plan = plan_run(config, project.parent)
    checkpoint = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    model = load_trained(config.model, config.train, checkpoint=None).model
    trainer = make_trainer(plan.trainer, model, run_dir=run / "again")
    hints = open_hints(plan.trainer, plan.tasks, plan.rollouts.chat)
    maker = StepMaker(plan.schedule, hints=hints)
    store = TrajectoryStore(run / "trajectories")
    assert store.steps("train") == list(range(1, checkpoint.state.step + 1))
    for step in store.steps("train"):
        prepared = maker.prepare(step, stored_groups(store, "train", step))
        trainer.step(prepared.batch, lambda done, total: None)
    saved = AutoModelForCausalLM.from_pretrained(checkpoint.path, dtype=torch.float32)
    ours, theirs = dict(model.named_parameters()), dict(saved.named_parameters())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=ROUNDING)
    if not config.resolved_algorithm().needs_values:
        return
    (run / "again").mkdir(exist_ok=True)
    trainer.save(run / "again")
    ours, theirs = load_trainer_state(run / "again"), load_trainer_state(checkpoint.path)
    assert ours.critic is not None
    assert theirs.critic is not None
    for part in ("masters", "moments"):
        torch.testing.assert_close(ours.critic[part], theirs.critic[part], rtol=0, atol=ROUNDING)
    assert ours.kl_coef == pytest.approx(theirs.kl_coef)
    torch.testing.assert_close(ours.reference, theirs.reference, rtol=0, atol=ROUNDING)
