"""A pause, a rollback and a resume on Ray, of a run with a critic."""

import json
from pathlib import Path

import pytest

from agentrl.disk.checkpoint import list_checkpoints
from agentrl.disk.pause import PauseState, answer, read_pause
from agentrl.metrics.sinks import read_metrics
from tests.runtime.health.test_rule_processes import project
from tests.runtime.one_pass import assert_state_is_about_one_pass_over_the_store
from tests.runtime.test_ppo_run import PPO, states
from tests.runtime.tiny_project import Agentrl, agentrl, write_model

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_a_pause_a_rollback_and_a_resume_of_two_ranks_with_a_critic(tmp_path: Path) -> None:
    """The cluster of the run ends and begins again in one process, then in another.

    Fails if a paused rank is gone when it is to go on, if anything of the stages that ended is
    still there when they begin again, or if the critic, its optimizer, the KL controller, the
    reference that follows or the schedule of the learning rate stay where the collapse left them.
    Fails if a rank makes its trainer without the critic, or waits for another to save.
    """
    path = project(
        tmp_path / "project",
        write_model(tmp_path / "model"),
        "reward < 0 for 1 step -> pause",
        "reward < 0 for 2 steps -> rollback",
        train__steps=5,
        train__schedule="cosine",
        checkpoint__save="all",
        runtime={"kind": "ray", "rollout_workers": 1, "trainer_ranks": 2},
        **{name: value for name, value in PPO.items() if not name.startswith("checkpoint")},
    )
    run = tmp_path / "project" / "runs" / "tiny"
    process = Agentrl(tmp_path / "out.txt", "train", path, "runtime=ray")
    process.wait_for("answer it: agentrl control", 240)
    pause = read_pause(run / "control")
    assert pause is not None
    assert pause.step == list_checkpoints(run / "checkpoints")[-1].state.step == 4
    answer(run, PauseState.CONTINUE)
    assert process.wait(240) == 0, process.text()  # two starts of Ray on a busy machine
    plan = json.loads((run / "rolled-back" / "1" / "rollback.json").read_text())
    assert (plan["step"], plan["to"]) == (5, 2)
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "reward" in line]
    assert [line["step"] for line in lines] == list(range(1, 6))
    assert all(line["reward"] >= 0 for line in lines)
    assert_state_is_about_one_pass_over_the_store(path, run)

    words = ("train", path, "--resume", "runtime=ray", "train.steps=6")
    status, text = agentrl(tmp_path / "resumed.txt", *words)
    assert status == 0, text
    metrics = read_metrics(run / "metrics.jsonl")
    losses = [line["critic/vf_loss"] for line in metrics if "critic/vf_loss" in line]
    assert len(losses) == 6
    policy, critic, _ = states(tmp_path / "project")
    assert critic.keys() - policy.keys() >= {"value_head.weight", "value_head.bias"}
