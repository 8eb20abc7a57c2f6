"""Asynchronous runs over real vLLM servers: each token has the log-probability of its weights.

A server is killed on the way, and each version has a checkpoint. Afterwards each stored token is
computed again, by transformers, with the weights that the token names.

    AGENTRL_ALL_MODES=1 pytest tests/runtime/test_asynchronous_vllm.py     all modes, also on Ray

Without the variable one mode runs, the one in which weights change in the middle of a turn, and
20 steps of it instead of 60.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl.config import load_config
from agentrl.config.fleet import ScheduleSection
from agentrl.data import TrajectoryStore
from agentrl.data.staleness import Pace
from agentrl.disk.checkpoint import list_checkpoints
from agentrl.disk.stored_groups import stored_groups
from agentrl.machine.processes.tree import children_of, descendants_of
from agentrl.metrics.sinks import read_metrics
from agentrl.types import Trajectory
from tests.runtime.tiny_project import Agentrl, write_larger_model, write_project
from tests.serving.tiny_vllm import require_vllm

pytestmark = pytest.mark.slow

STEPS = 60 if os.environ.get("AGENTRL_ALL_MODES") else 20
GROUPS, TASKS = 3, 12
"""Of a step, and in the data set."""
CLOSE = 1e-5
"""Most mean difference of log-probabilities with the same weights; a hundred times as much and more
with those of the version before."""
MODES = {
    "streaming": {"trigger_parameter_sync_step": 4},
    "one_step_off": {"staleness_threshold": 1},
    "stale": {"trigger_parameter_sync_step": 3, "staleness_threshold": 0.5},
    "partial": {"staleness_threshold": 1, "partial_rollout": True},
}
LOCAL = pytest.mark.fleet
RAY = pytest.mark.ray
CASES = [pytest.param("partial", "local", marks=LOCAL)]
if os.environ.get("AGENTRL_ALL_MODES"):
    CASES = [
        *(pytest.param(mode, "local", marks=LOCAL) for mode in MODES),
        *(pytest.param(mode, "ray", marks=RAY) for mode in MODES),
    ]


@dataclass(slots=True, kw_only=True)
class Differences:
    """Absolute differences of log-probabilities, over all sampled tokens of a run."""

    tokens: int = 0
    own: float = 0.0
    """Summed, with the weights that each token names."""
    largest: float = 0.0
    """Of one token, with the weights that it names."""
    older: float = 0.0
    """Summed, with the weights of the version before."""


@pytest.mark.parametrize(("mode", "runtime"), CASES)
def test_every_token_is_of_the_weights_it_names(mode: str, runtime: str, tmp_path: Path) -> None:
    """Fails if a swap leaves keys, values or weights of other versions, or a kill loses a task."""
    require_vllm()
    path = write_asynchronous_project(tmp_path, MODES[mode], runtime)
    process = Agentrl(tmp_path / "out.txt", "train", path)
    process.wait_for("step 6/", 300)
    kill_a_server(process, 0)
    process.wait_for(f"step {STEPS - 5}/", 400)
    assert process.wait(300) == 0, why(tmp_path, process)

    run = tmp_path / "runs" / "tiny"
    store = TrajectoryStore(run / "trajectories")
    steps = {step: stored_groups(store, "train", step) for step in store.steps("train")}
    assert list(steps) == list(range(1, STEPS + 1))
    trained = Counter(group.task_id for groups in steps.values() for group in groups)
    assert set(trained.values()) == {STEPS * GROUPS // TASKS}, trained
    lines = list(read_metrics(run / "metrics.jsonl"))
    assert any(line.get("sync/quarantined", 0) for line in lines), "the kill was not noticed"

    rows = {
        step: [row for group in groups for row in group.trajectories]
        for step, groups in steps.items()
    }
    check_ages(rows, load_config(path).schedule)
    found = recompute(run, tmp_path / "model", [row for own in rows.values() for row in own])
    print(mode, runtime, found)
    assert found.own / found.tokens < CLOSE, found
    assert found.older / found.tokens > 100 * CLOSE, f"the versions are too alike: {found}"


def write_asynchronous_project(folder: Path, schedule: dict[str, object], runtime: str) -> Path:
    """Two servers, turns much longer than a training step, so that weights change inside of them,
    and big learning steps."""
    kind: dict[str, object] = {"kind": runtime}
    if runtime == "ray":
        kind["rollout_workers"] = 1
    path = write_project(
        folder,
        serving={"engine": "vllm", "replicas": 2, "kv_cache_gb": 0.1, "max_batch_size": 16},
        runtime=kind,
        schedule=schedule,
        rollout__max_turn_tokens=96,
        rollout__max_response_tokens=256,
        rollout__max_context_tokens=384,
        train__steps=STEPS,
        train__learning_rate=0.01,
        checkpoint={"every_steps": 1, "keep_last": STEPS + 1},
        eval={"datasets": {}},
    )
    write_larger_model(folder / "model")
    return path


def kill_a_server(process: Agentrl, index: int) -> None:
    """`kill -9` the API server of one replica."""
    servers = [pid for pid in descendants_of(process.pid) if b"api_server" in words_of(pid)]
    # The supervisor has the words of its server too.
    pids = sorted(pid for pid in servers if b"tree.py" not in words_of(pid))
    assert len(pids) == 2, [words_of(pid) for pid in descendants_of(process.pid)]
    assert children_of(pids[index])
    os.kill(pids[index], signal.SIGKILL)


def words_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def why(folder: Path, process: Agentrl) -> str:
    logs = sorted((folder / "runs").rglob("vllm-*.log"))
    return "\n".join([process.text(), *(f"{log}:\n{log.read_text()[-3000:]}" for log in logs)])


def check_ages(rows: dict[int, list[Trajectory]], schedule: ScheduleSection) -> None:
    """No token is older than its mode allows, and only partial rollouts change within a turn."""
    ages: Counter[int] = Counter()
    changing = 0
    for step, own in rows.items():
        for row in own:
            versions = [version for version in row.policy_versions if version >= 0]
            assert list(versions) == sorted(versions), f"older weights after newer: {versions}"
            ages.update(step - 1 - version for version in versions)
            spans = [row.policy_versions[turn.start : turn.end] for turn in row.turns]
            changing += any(len(set(span)) > 1 for span in spans)
    bound = Pace.of(schedule, prompts_per_step=GROUPS).lag_bound
    assert bound is not None
    assert min(ages) >= 0
    assert 0 < max(ages) <= bound, ages
    assert bool(changing) == schedule.partial_rollout, f"{changing} rollouts changed in a turn"


def recompute(run: Path, first: Path, rows: list[Trajectory]) -> Differences:
    """Compare the log-probabilities of all rows with those of the weights of each version."""
    import torch
    from transformers import LlamaForCausalLM

    folders = {0: first} | {
        item.state.version: item.path for item in list_checkpoints(run / "checkpoints")
    }
    found = Differences()
    for version, folder in sorted(folders.items()):
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        after = version + 1
        for row in rows:
            if not {version, after} & set(row.policy_versions):
                continue
            ids = torch.tensor([[*row.prompt_ids, *row.response_ids]])
            with torch.no_grad():
                logits_TV = model(ids).logits[0, len(row.prompt_ids) - 1 : -1].double()
            log_probs_TV = torch.log_softmax(logits_TV / row.temperature, dim=-1)
            sampled_T1 = torch.tensor(row.response_ids)[:, None]
            said_T = torch.tensor(row.rollout_log_probs, dtype=torch.float64)
            gaps_T = (log_probs_TV.gather(1, sampled_T1)[:, 0] - said_T).abs()
            versions_T = torch.tensor(row.policy_versions)
            own_T = gaps_T[versions_T == version]
            found.tokens += len(own_T)
            found.own += float(own_T.sum())
            found.largest = max([found.largest, *own_T.tolist()])
            found.older += float(gaps_T[versions_T == after].sum())
    assert found.tokens == sum(row.num_action_tokens for row in rows), "a version was not kept"
    return found
