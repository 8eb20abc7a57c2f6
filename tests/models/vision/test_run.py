"""A whole run of a vision-language model on the grid world of pictures, and its evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from agentrl.cli.console.fit_view import FitView
from agentrl.config import RunConfig
from agentrl.config.fit import FitConfig
from agentrl.config.plan import plan_run
from agentrl.config.schema import ModelSection
from agentrl.data import TrajectoryStore
from agentrl.errors import ConfigError
from agentrl.fit.launch import fit
from agentrl.metrics.sinks import read_metrics
from agentrl.models.vision.checks import check_seeing, open_images
from agentrl.preflight.reward.recorded_solutions import record_solutions
from agentrl.runtime.launch import train
from agentrl.runtime.progress import Progress
from agentrl.runtime.sampling.sample import evaluate
from tests.models.vision.tiny_seeing import checkpoint, reader_for
from tests.runtime.tiny_project import BACKEND


def settings(folder: Path) -> dict[str, Any]:
    return {
        "run": {"name": "seeing", "dir": str(folder / "runs"), "seed": 3},
        "model": {"path": str(folder / "model"), "dtype": "float32", "device": "cpu"},
        "env": {"target": "agentrl_envs.screens:ScreenTask", "args": {"turns_per_cell": 1}},
        "sandbox": {"backend": "nothing.py:Nothing"},
        "dataset": {"source": "agentrl_envs.screens:make_tasks", "args": {"n": 4}},
        "rollout": {
            "prompts_per_step": 2,
            "n_samples_per_prompt": 2,
            "max_assistant_turns": 3,
            "max_turn_tokens": 3,
            "max_response_tokens": 200,
            "max_context_tokens": 400,
        },
        "reward": {"functions": {"long": {"target": "long.py:long", "weight": 1.0}}},
        "algorithm": {"kl_coef": 0.01},
        "serving": {"max_batch_size": 8, "kv_cache_gb": 0.1},
        "train": {
            "steps": 1,
            "learning_rate": 1e-2,
            "micro_batch_tokens": 1024,
            "freeze": ["vision_tower"],
        },
        "checkpoint": {"every_steps": 1},
    }


KL = "distill/reverse_kl"

REWARD = '''
"""Differs between rollouts of a random model."""


def long(trajectory, task):
    return float(sum(trajectory.response_ids) % 7)
'''


async def test_a_run_trains_on_pictures_and_its_checkpoint_sees(tmp_path: Path) -> None:
    checkpoint("qwen2_vl", tmp_path / "model")
    (tmp_path / "long.py").write_text(REWARD)
    (tmp_path / "nothing.py").write_text(BACKEND)
    sections = settings(tmp_path)
    hint = {"kind": "hint", "hint": "Look well."}
    sections["algorithm"] |= {"distill": {"teacher": hint, "with_reward": True}}
    config = RunConfig.model_validate(sections)
    await train(config, base=tmp_path, progress=Progress())
    run = tmp_path / "runs" / "seeing"
    rows = [stored.trajectory for stored in TrajectoryStore(run / "trajectories").read("train")]
    assert all(row.rule.reward_trusted for row in rows), rows[0].termination_detail
    assert all(len(row.images) == sum(t.role == "user" for t in row.turns) + 1 for row in rows)
    kept = {path.name for path in (run / "images").iterdir()}
    assert kept == {span.digest for row in rows for span in row.images}
    lines = read_metrics(run / "metrics.jsonl")
    (reverse_kl,) = [line[KL] for line in lines if KL in line]
    assert reverse_kl != 0.0
    after = run / "checkpoints" / "step-1"
    assert (after / "preprocessor_config.json").is_file()
    weights = [load_file(folder / "model.safetensors") for folder in (tmp_path / "model", after)]
    moved = {name for name, old in weights[0].items() if not torch.equal(old, weights[1][name])}
    assert moved == {name for name in weights[0] if "visual" not in name}
    absent = config.model_copy(update={"model": ModelSection(path=str(tmp_path / "absent"))})
    made = await record_solutions(
        absent,
        base=tmp_path,
        model_path=str(run),
        tasks=4,
        out=tmp_path / "expert",
        progress=Progress(),
    )
    assert (made.rollouts, made.trusted) == (4, 4)
    await learned_from(tmp_path / "expert", run, tmp_path)
    (score,) = await evaluate(
        config, base=tmp_path, model_path=str(run), out=tmp_path / "out", progress=Progress()
    )
    assert (score.rollouts >= 4, score.untrusted) == (True, 0)
    assert len(list((tmp_path / "out" / "images").iterdir())) >= 4


async def learned_from(expert: Path, run: Path, base: Path) -> None:
    """Supervised learning on the rollouts of an expert, with the images that they were shown."""
    settings = {
        "run": {"name": "fit", "dir": str(base / "runs")},
        "model": {"path": str(run), "dtype": "float32", "device": "cpu"},
        "data": {"source": f"run:{expert}", "examples_per_step": 2, "epochs": 2},
        "objective": "sft",
        "train": {
            "steps": 3,
            "learning_rate": 1e-2,
            "micro_batch_tokens": 1024,
            "backend": "fsdp2",
        },
    }
    result = await fit(FitConfig.model_validate(settings), base=base, progress=FitView(Console()))
    lines = read_metrics(result.path / "metrics.jsonl")
    losses = [line["sft/loss"] for line in lines if "sft/loss" in line]
    assert losses[-1] < losses[0]
    folder = result.path / "checkpoints" / "step-3"
    assert (folder / "preprocessor_config.json").is_file()
    before, after = (
        load_file(of / "model.safetensors") for of in (run / "checkpoints" / "step-1", folder)
    )
    # Pixels are learned from: the gradient reaches the first layer of the tower.
    name = next(name for name in before if "visual.patch_embed" in name)
    assert not torch.equal(before[name], after[name])


def test_a_teacher_behind_a_server_is_refused(tmp_path: Path) -> None:
    config = settings(tmp_path)
    teacher = {"kind": "served", "url": "http://127.0.0.1:9/v1", "model": "big"}
    config["algorithm"] = {"distill": {"teacher": teacher}}
    with pytest.raises(ConfigError) as refused:
        check_seeing(plan_run(RunConfig.model_validate(config), tmp_path).trainer)
    assert "algorithm.distill.teacher.kind: checkpoint or hint (got served)" in str(refused.value)
    check_seeing(plan_run(RunConfig.model_validate(settings(tmp_path)), tmp_path).trainer)
    config = settings(tmp_path) | {"serving": {"engine": "vllm"}}
    plan = plan_run(RunConfig.model_validate(config), tmp_path)
    with pytest.raises(ConfigError, match=r"a Gemma 3, .*serving.engine: embedded \(got vllm\)"):
        open_images(plan.trainer, plan.engines.serving, reader_for("gemma3", tmp_path), tmp_path)
