"""Whole runs with a critic: several passes, KL in the reward, a reference that follows; resumed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config import load_config
from agentrl.config.plan import plan_run
from agentrl.config.schema import AlgorithmSection
from agentrl.disk.checkpoint import latest_checkpoint
from agentrl.errors import TrainError
from agentrl.metrics.sinks import read_metrics
from agentrl.runtime.assembly.trainer import make_trainer
from agentrl.train import replay_failed_step
from agentrl.train.checkpoint import load_trainer_state
from agentrl.train.model.load import load_trained
from tests.runtime.tiny_project import agentrl, write_project

PPO: dict[str, Any] = {
    "algorithm__preset": "ppo",
    "algorithm__kl_coef": 0.05,
    "algorithm__old_log_probs": "recompute",
    "algorithm__kl_target": [0.05, 0.2],
    "algorithm__reference_update": {"every_steps": 2, "polyak": 0.5},
    "critic__learning_rate": 1e-2,
    "critic__warmup_steps": 1,
    "train__epochs_per_batch": 2,
    "train__minibatches": 2,
    "train__learning_rate": 1e-2,
    "checkpoint__every_steps": 1,
    "checkpoint__save": "all",
}


def states(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], float]:
    checkpoint = latest_checkpoint(folder / "runs" / "tiny" / "checkpoints")
    assert checkpoint is not None
    state = load_trainer_state(checkpoint.path)
    assert state.critic is not None
    return state.optimizer["masters"], state.critic["masters"], state.kl_coef


def test_ppo_from_end_to_end_and_resumed(tmp_path: Path) -> None:
    """Fails if a resumed run begins with a fresh critic, or with the reference of step 0."""
    path = write_project(tmp_path / "whole", train__steps=4, **PPO)
    status, text = agentrl(tmp_path / "whole.log", "train", path)
    assert status == 0, text
    # Every model of the run was compared with its own forward, and the start says so.
    proofs = json.loads((tmp_path / "whole" / "runs" / "tiny" / "run.json").read_bytes())["proofs"]
    assert {name: set(proof["forms"]) for name, proof in proofs.items()} == {
        "model.path": {"packed", "prefix-shared"},
        "critic": {"packed", "prefix-shared"},
        "reference": {"packed", "prefix-shared"},
        "serving.engine": {"decoded"},
    }
    assert all(max(p["forms"].values()) <= p["tolerance"] for p in proofs.values())
    said = r"packedandprefix-shared(by[a-z_,]+)?asitsownforward\(within"
    assert re.search(said, "".join(text.split()))
    lines = [
        line
        for line in read_metrics(tmp_path / "whole" / "runs" / "tiny" / "metrics.jsonl")
        if "critic/vf_loss" in line
    ]
    assert len(lines) == 4
    # The policy rests in the first step: its KL to what it was is 0 in the first two.
    assert [line.get("train/updates") for line in lines] == [None, 4, 4, 4]
    assert [line["kl"] == 0.0 for line in lines] == [True, True, False, False]
    assert lines[0]["critic/values/max"] == 0.0 < lines[1]["critic/values/max"]
    # And nothing is steered by that before the policy has moved.
    assert [line["train/kl_coef"] for line in lines[:3]] == [0.05, 0.05, 0.05 / 1.5]

    for steps, more in ((2, ()), (4, ("--resume",))):
        path = write_project(tmp_path / "cut", train__steps=steps, **PPO)
        status, text = agentrl(tmp_path / f"cut{steps}.log", "train", path, *more)
        assert status == 0, text
    *ours, our_kl_coef = states(tmp_path / "cut")
    *theirs, their_kl_coef = states(tmp_path / "whole")
    assert our_kl_coef == their_kl_coef
    for mine, whole in zip(ours, theirs, strict=True):
        assert all(torch.equal(mine[name], whole[name]) for name in whole)


LOSS = '''
import torch

from agentrl.train.losses import TokenLosses, policy_loss


@policy_loss("overflowing")
def loss(inputs):
    """Fine while it is looked at, but its gradient at a ratio of 1 is infinite."""
    apart = inputs.log_probs_R - inputs.log_probs_R.detach()
    return TokenLosses(loss_R=inputs.trained(torch.sqrt(apart)))
'''


def test_a_run_whose_gradient_is_nan_leaves_a_batch_that_can_be_run_again(tmp_path: Path) -> None:
    """Fails if nothing is kept, or if the message does not say where and which rows did it."""
    tmp_path.joinpath("loss.py").write_text(LOSS)
    path = write_project(
        tmp_path, algorithm__policy_loss="loss.py:loss", algorithm__old_log_probs="recompute"
    )
    status, text = agentrl(tmp_path / "out.log", "train", path)
    kept = tmp_path / "runs" / "tiny" / "failed-step-1.pt"
    said = "".join(text.split())
    assert status == 2, text
    assert "thegradientnormofthepolicyisnan;rowswhoseowngradientisnotfinite:" in said
    assert f"Thebatchiskeptin{kept}" in said
    assert "Traceback" not in text

    config = load_config(path)
    model = load_trained(config.model, config.train, checkpoint=None).model
    plan = plan_run(config, tmp_path).trainer
    trainer = make_trainer(plan, model, run_dir=tmp_path)
    with pytest.raises(TrainError, match="gradient norm of the policy is nan"):
        replay_failed_step(kept, trainer)
    plain = make_trainer(
        replace(plan, algorithm=AlgorithmSection().resolved(horizon=8)),
        load_trained(config.model, config.train, checkpoint=None).model,
        run_dir=tmp_path,
    )
    assert replay_failed_step(kept, plain).result()["train/updates"] == 1
