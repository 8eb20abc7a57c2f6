"""One seed, real vLLM servers: a run in one process and one on Ray sample the same tokens.

vLLM on a CPU adds up a request's numbers in another order when others are computed beside it, or
when a part of its prompt comes from the cache. So the server computes one sequence at a time
(`serving.max_batch_size: 1`) without a prefix cache (`enable_prefix_caching: false`), and trainers
compute with one thread. All else is that of any run: the same seeds and the same order of batches.
"""

import importlib.util
from pathlib import Path

import pytest

from agentrl.data import TrajectoryStore
from agentrl.disk.stored_groups import stored_groups
from agentrl.types import Trajectory
from tests.runtime.tiny_project import Agentrl, write_larger_model, write_project

pytestmark = [
    pytest.mark.ray,
    pytest.mark.fleet,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM"),
]

STEPS = 3


def rows_of(run: Path) -> list[tuple[int, Trajectory]]:
    """Step and row of everything that was trained, in the order of the batches."""
    store = TrajectoryStore(run / "trajectories")
    return [
        (step, row)
        for step in store.steps("train")
        for group in stored_groups(store, "train", step)
        for row in group.trajectories
    ]


def test_local_and_ray_train_the_same_batches_token_by_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a seed, a task or the position of a group depends on the runtime, if a worker makes
    other prompts, or if weights reach the server otherwise than in one process."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = write_project(
        tmp_path,
        train={
            "steps": STEPS,
            "learning_rate": 1e-2,
            "micro_batch_tokens": 512,
            "backend": {"kind": "torch", "lanes": 1},
        },
        serving={
            "engine": "vllm",
            "kv_cache_gb": 0.1,
            "max_batch_size": 1,
            "args": {"enable_prefix_caching": False},
        },
        eval={"datasets": {}},
    )
    write_larger_model(tmp_path / "model")
    for name, words in {
        "local": (),
        "ray": ("runtime=ray", "runtime.rollout_workers=2"),
    }.items():
        process = Agentrl(tmp_path / f"{name}.txt", "train", path, f"run.name={name}", *words)
        assert process.wait(400) == 0, process.text()
    ours, theirs = (rows_of(tmp_path / "runs" / name) for name in ("local", "ray"))
    assert [(step, row.rollout_id) for step, row in ours] == [
        (step, row.rollout_id) for step, row in theirs
    ]
    assert {step for step, _ in ours} == set(range(1, STEPS + 1))
    assert len(ours) >= 12 * STEPS
    for (step, here), (_, there) in zip(ours, theirs, strict=True):
        at = f"step {step}, {here.rollout_id}"
        assert here.prompt_ids == there.prompt_ids, at
        assert here.response_ids == there.response_ids, at
        assert here.response_mask == there.response_mask, at
        assert here.policy_versions == there.policy_versions, at
        assert here.reward == there.reward, at
        sampled = zip(here.rollout_log_probs, there.rollout_log_probs, strict=True)
        assert max(abs(one - other) for one, other in sampled) < 1e-5, at
    # A learning rate of 0.01 moves log-probabilities by tenths: the steps are not all one policy.
    assert {max(row.policy_versions) for _, row in ours} == set(range(STEPS))
