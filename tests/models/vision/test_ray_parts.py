"""A step on images by the parts of a run on Ray, each as in a process of its own."""

from __future__ import annotations

import pickle
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import torch
from agentrl_envs.screens import make_tasks

from agentrl.config import RunConfig
from agentrl.config.plan import plan_run
from agentrl.runtime.assembly.rollout_host import RolloutHost
from agentrl.runtime.ray.actor import ActorSpec, RankSpec
from agentrl.runtime.ray.rank import Rank
from agentrl.types import SamplingParams
from tests.models.vision.test_run import REWARD, settings
from tests.models.vision.tiny_seeing import checkpoint
from tests.runtime.tiny_project import BACKEND


async def test_a_worker_shows_images_to_the_engine_of_a_rank_that_trains_on_them(
    tmp_path: Path,
) -> None:
    """Fails if a worker cannot expand images, if they are not named to the engine, and if the rank
    does not find their files."""
    checkpoint("qwen2_vl", tmp_path / "model")
    (tmp_path / "long.py").write_text(REWARD)
    (tmp_path / "nothing.py").write_text(BACKEND)
    sections = settings(tmp_path) | {
        "runtime": {"kind": "ray"},
        "algorithm": {
            "preset": "ppo",
            "kl_coef": 0.01,
            "distill": {"teacher": {"path": "model"}, "with_reward": True},
        },
    }
    config = RunConfig.model_validate(sections)
    run = tmp_path / "runs" / "seeing"
    run.mkdir(parents=True)
    spec = ActorSpec(
        name="rank-0", plan=plan_run(config, tmp_path), run_dir=run, host="127.0.0.1", identity=""
    )
    rank_spec = RankSpec(
        rank=0, world_size=1, threads=1, trajectories=run / "trajectories", checkpoint=None
    )
    rank = Rank.load(spec, rank_spec, "")
    host = RolloutHost(plan_run(config, tmp_path).rollouts, wait_s=0.0, index=0, sharers=1)
    async with AsyncExitStack() as stack:
        stack.callback(rank.close)
        engine = await rank.serve(stack, host="127.0.0.1")
        assert engine is not None
        stack.push_async_callback(host.close)
        report = await host.open([engine], pickle.loads(pickle.dumps(rank.policy_copy)))
        sampling = SamplingParams(max_tokens=3, stop_token_ids=report.stop_token_ids)
        (task,) = make_tasks(n=1)
        _, group = await host.run_group(task, "g", 3, sampling, 7)
    rows = group.trajectories
    assert all(row.rule.reward_trusted for row in rows), rows[0].termination_detail
    assert all(row.images for row in rows)
    before = {name: tensor.clone() for name, tensor in rank.trainer.weights()}
    _, batch = rank.steps.prepare(1, [group], stored=False)
    metrics = rank.trainer.step(batch).result()
    # What the trainer reads is what the engine was shown.
    for end in ("min", "max"):
        assert metrics[f"rollout_corr/ratio_{end}"] == pytest.approx(1.0, abs=1e-4)
    # The teacher is the policy, and agrees with it where it sees the same pixels.
    assert metrics["distill/reverse_kl"] == pytest.approx(0.0, abs=1e-6)
    moved = {
        name for name, tensor in rank.trainer.weights() if not torch.equal(tensor, before[name])
    }
    assert moved == {name for name in before if "visual" not in name}
