"""A model cut up over two ranks, sampled by a real vLLM server, and rolled back."""

import asyncio
import importlib.util
from pathlib import Path

import pytest

from agentrl.disk.checkpoint import latest_checkpoint
from agentrl.disk.rollback import RollbackPlan, begin_rollback, finish_rollbacks
from agentrl.metrics.sinks import read_metrics
from tests.runtime.one_pass import assert_state_is_about_one_pass_over_the_store
from tests.runtime.ray.ray_runs import drive
from tests.runtime.tiny_project import write_larger_model, write_project

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def needs(*libraries: str) -> None:
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed here: {missing}; run make fleet")


async def test_a_server_samples_with_what_the_slices_put_together(tmp_path: Path) -> None:
    """Fails if a rank sends its slice for the weight, an older weight, or none; the run is rolled
    back in the middle and goes on with another backend, so also if one cannot read the other's
    checkpoint, or if the optimizer is not what it was there."""
    needs("vllm", "deepspeed")
    path = write_project(
        tmp_path,
        model__dtype="float32",
        runtime={"kind": "ray", "rollout_workers": 1, "trainer_ranks": 2},
        serving={"engine": "vllm", "kv_cache_gb": 0.1, "max_batch_size": 16},
        train={
            "steps": 2, "learning_rate": 1e-2, "micro_batch_tokens": 512, "backend": "fsdp2",
        },
        eval={"datasets": {}},
        checkpoint={"every_steps": 1},
    )  # fmt: skip
    write_larger_model(tmp_path / "model")
    assert (await drive(path)).steps == 2
    run = tmp_path / "runs" / "tiny"
    await asyncio.to_thread(roll_back, run, to=1)
    further = ("train.steps=4", "train.backend=deepspeed", "train.backend.zero_stage=3")
    assert (await drive(path, *further)).steps == 4
    lines = list(read_metrics(run / "metrics.jsonl"))
    gaps = [
        line["sampling/sampling_logp_difference/max"]
        for line in lines
        if "sampling/sampling_logp_difference/max" in line
    ]
    moved = [line["train/grad_norm"] for line in lines if "train/grad_norm" in line]
    assert len(gaps) == 4, lines
    assert all(norm > 0 for norm in moved)
    # A learning rate of 0.01 moves log-probabilities by tenths in one step.
    assert max(gaps) < 2e-3, gaps
    assert_state_is_about_one_pass_over_the_store(path, run)


def roll_back(run: Path, *, to: int) -> None:
    """As a rule does it."""
    last = latest_checkpoint(run / "checkpoints")
    assert last is not None
    cursor = last.state.cursor
    begin_rollback(
        run,
        RollbackPlan(step=last.state.step, to=to, why="test", cursor=cursor, elapsed_s=1.0),
    )
    finish_rollbacks(run)
