"""Real runs whose reward comes from reward models: one of a fit, an ensemble, and a broken one."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from agentrl.chat import build_chat
from agentrl.cli.simulate.fleet.fake_fleet import fake_fleet
from agentrl.cli.simulate.fleet.fake_servers import FakeTurn
from agentrl.config import load_config
from agentrl.config.plan import plan_run
from agentrl.config.schema import CheckpointSection
from agentrl.data import TrajectoryStore
from agentrl.disk.checkpoint import CheckpointState, save_checkpoint
from agentrl.disk.rollback import logged_metrics
from agentrl.fit.rating.reward_model import open_reward_model
from agentrl.fit.reward_models.rollout_rewards import scored_row
from agentrl.metrics.sinks import read_metrics
from agentrl.models.source import load_tokenizer
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.preflight.checks.reward_models import reward_models
from agentrl.reward.scale import RewardScale, ensemble_reward
from agentrl.types import Termination, Trajectory
from tests.fit.vowel_model import write_vowel_model
from tests.runtime.children.test_whole_run import run_stages
from tests.runtime.reward_checkpoints import write_reward_model
from tests.runtime.tiny_project import agentrl, write_project


def stored(run: Path, kind: str = "train") -> list[Trajectory]:
    store = TrajectoryStore(run / "trajectories")
    return [row.trajectory for step in store.steps(kind) for row in store.read(kind, step=step)]


def scores(folder: Path, rows: Sequence[Trajectory]) -> np.ndarray:
    """[N] By the model alone, one row at a time."""
    model = open_reward_model(str(folder), device="cpu")
    return np.array([model.scores([scored_row(row)])[0, 0] for row in rows])


def test_a_run_is_paid_by_a_fitted_model_and_an_ensemble(tmp_path: Path) -> None:
    """Fails if a rollout gets the score of another, if the environment's tokens are scored, if the
    scale is not that beside the checkpoint, or if members are averaged before they are whitened."""
    fit = write_vowel_model(tmp_path)
    held, other = (tmp_path / f"{name}.jsonl" for name in ("held", "other"))
    status, text = agentrl(
        tmp_path / "report.log", "rm", "report", fit, "--data", held, "--calibrate-on", other,
        "--store", "--device", "cpu",
    )  # fmt: skip
    assert status == 0, text
    scales = (RewardScale(mean=1.0, std=0.5), RewardScale(temperature=2.0, mean=-1.0, std=8.0))
    members = [
        write_reward_model(tmp_path / f"m{n}", tmp_path / "model", seed=n, scale=scale)
        for n, scale in enumerate(scales)
    ]
    models = {
        "fitted": {"path": "runs/fit", "weight": 0.5},
        "both": {"path": ["m0", "m1"], "disagreement": 0.25},
        "heads": {"path": "h", "disagreement": 0.25, "weight": 0.0},
    }
    # The same two heads on one body.
    write_reward_model(tmp_path / "h", tmp_path / "model", heads=2, scale=scales)
    path = write_project(
        tmp_path, reward={"models": models, "env_weight": 2.0}, train__steps=2, run__name="paid"
    )
    status, text = agentrl(tmp_path / "run.log", "train", path)
    assert status == 0, text

    run = tmp_path / "runs" / "paid"
    proofs = [n for n in json.loads((run / "run.json").read_bytes())["proofs"] if "reward" in n]
    assert sorted(name.split()[0] for name in proofs) == [
        f"reward.models.{name}" for name in ("both", "both", "fitted", "heads")
    ]
    rows = stored(run)
    assert len(rows) == 24
    model = open_reward_model(str(fit), device="cpu")
    scale = model.stored_scale()
    assert scale is not None
    fitted = scale.normalised(scores(fit, rows))
    both, between = ensemble_reward([scores(m, rows) for m in members], 0.25, scales=scales)
    wanted = {"fitted": fitted, "both": both, "both/std_between": between}
    wanted |= {"heads": both, "heads/std_between": between}
    for name, values in wanted.items():
        assert np.allclose([row.reward_parts[name] for row in rows], values, atol=1e-3), name
        assert values.std() > 0.01
    env = np.array([row.reward_parts["env"] for row in rows])
    total = 2.0 * env + 0.5 * fitted + both
    assert np.allclose([row.reward or 0.0 for row in rows], total, atol=1e-3)
    last = logged_metrics(run / "metrics.jsonl")[2]
    assert {f"rewards/{name}/mean" for name in wanted} <= last.keys()


def test_a_model_that_fails_ends_its_rollouts_and_the_run_goes_on(tmp_path: Path) -> None:
    """Fails if a score that is not finite becomes a reward, as 0, or ends the run."""
    path = write_project(
        tmp_path, reward={"models": {"rm": {"path": "rm", "scale": "none"}}}, train__steps=3
    )
    write_reward_model(tmp_path / "rm", tmp_path / "model", broken=True)
    status, text = agentrl(tmp_path / "run.log", "train", path)
    assert status == 0, text
    rows = stored(tmp_path / "runs" / "tiny")
    crashed = [row for row in rows if row.termination is Termination.GRADER_CRASHED]
    assert 0 < len(crashed) < len(rows)
    for row in rows:
        if row in crashed:
            assert row.reward is None
            assert "rm gives [nan], expected finite numbers" in row.termination_detail
        else:
            assert row.reward == pytest.approx(row.reward_parts["env"] + row.reward_parts["rm"])
    lines = [line for line in read_metrics(tmp_path / "runs/tiny/metrics.jsonl")
             if "rewards/rm/mean" in line]  # fmt: skip
    assert [line["step"] for line in lines] == [1, 2, 3]


async def test_workers_in_child_processes_load_models_of_their_own(tmp_path: Path) -> None:
    """Fails if a child leaves the models out, or does not find them beside the run file."""
    config = load_config(write_project(tmp_path, train__steps=1))
    write_reward_model(tmp_path / "rm", tmp_path / "model", scale=RewardScale(std=2.0))
    chat = build_chat(load_tokenizer(config.model), config.chat)
    ids = [*chat.encode_plain("audio"), chat.stop_token_ids[0]]
    turn = FakeTurn(seconds=0.01, ids=ids, max_context_tokens=128)
    with fake_fleet(2, turn, conversations=12) as fakes:
        path = write_project(
            tmp_path,
            train__steps=1,
            serving={"engine": "external", "urls": list(fakes.urls)},
            runtime={"kind": "local", "worker_processes": 2},
            log={"tensorboard": False},
            reward={"models": {"rm": "rm"}},
        )
        run = await run_stages(load_config(path), tmp_path)
    rows = stored(run)
    wanted = scores(tmp_path / "rm", rows) / 2.0
    assert np.allclose([row.reward_parts["rm"] for row in rows], wanted, atol=1e-3)


def test_a_dry_run_refuses_what_cannot_work(tmp_path: Path) -> None:
    path = write_project(tmp_path, reward={"models": {"rm": "rm"}})
    write_reward_model(tmp_path / "rm", tmp_path / "model")
    status, text = agentrl(tmp_path / "out.log", "train", path, "--dry-run")
    said = " ".join(text.split())
    assert status == 2, text
    assert "fail reward models" in said
    assert "agentrl rm report" in said
    raw = "reward.models.rm.scale=none"
    plan = plan_run(load_config(path, [raw]), tmp_path)
    found = PreflightFacts(tokenizer=load_tokenizer(plan.rewards.model))
    warned = asyncio.run(reward_models(plan.rewards, plan.schedule, found))
    assert "nothing whitens or clips them" in str(warned)
    plan = plan_run(load_config(path, [raw, "reward.clip=[-5, 5]"]), tmp_path)
    clipped = asyncio.run(reward_models(plan.rewards, plan.schedule, found))
    assert isinstance(clipped, str)
    assert "nothing whitens" not in clipped


def test_a_resumed_run_is_paid_by_the_checkpoint_it_began_with(tmp_path: Path) -> None:
    """Fails if the fit that goes on meanwhile pays the later steps, or if a lost checkpoint is
    replaced by its next one."""
    path = write_project(
        tmp_path, reward={"models": {"rm": {"path": "rm", "scale": "none"}}}, train__steps=1
    )

    def fitted(step: int) -> Path:
        state = CheckpointState(step=step, version=step, cursor={}, elapsed_s=0.0)
        return save_checkpoint(
            tmp_path / "rm" / "checkpoints", state,
            lambda folder: write_reward_model(folder, tmp_path / "model", seed=step) and None,
            CheckpointSection(keep_last=5),
        )  # fmt: skip

    first = fitted(1)
    status, text = agentrl(tmp_path / "run.log", "train", path)
    assert status == 0, text
    fitted(2)
    status, text = agentrl(tmp_path / "more.log", "train", path, "train.steps=2", "--resume")
    assert status == 0, text
    rows = stored(tmp_path / "runs" / "tiny")
    assert len(rows) == 24
    wanted = scores(first, rows)
    assert np.allclose([row.reward_parts["rm"] for row in rows], wanted, atol=1e-3)
    shutil.rmtree(first)
    status, text = agentrl(tmp_path / "lost.log", "train", path, "train.steps=3", "--resume")
    assert status == 2, text
    said = " ".join(text.split())
    assert "the run began with reward.models.rm.path at" in said
    assert "but it is gone" in said
