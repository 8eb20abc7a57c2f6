"""A pause and a rollback of a run with a critic, a reference that follows and a schedule."""

import json
from pathlib import Path

from agentrl.disk.checkpoint import list_checkpoints
from agentrl.disk.pause import PauseState, answer, read_pause
from agentrl.metrics.sinks import read_metrics
from tests.runtime.health.test_rule_processes import project
from tests.runtime.one_pass import assert_state_is_about_one_pass_over_the_store
from tests.runtime.test_ppo_run import PPO
from tests.runtime.tiny_project import Agentrl, write_model


def test_a_pause_and_a_rollback_with_a_critic(tmp_path: Path) -> None:
    """Fails if the answer to a pause is not heard, or if the critic, its optimizer, the KL
    controller, the reference or the learning rate stay where the collapse left them."""
    path = project(
        tmp_path / "project",
        write_model(tmp_path / "model"),
        "reward < 0 for 1 step -> pause",
        "reward < 0 for 2 steps -> rollback",
        train__steps=5,
        train__schedule="cosine",
        checkpoint__save="all",
        **{name: value for name, value in PPO.items() if not name.startswith("checkpoint")},
    )
    run = tmp_path / "project" / "runs" / "tiny"
    process = Agentrl(tmp_path / "out.txt", "train", path)
    process.wait_for("answer it: agentrl control")
    pause = read_pause(run / "control")
    assert pause is not None
    assert pause.step == list_checkpoints(run / "checkpoints")[-1].state.step == 4
    answer(run, PauseState.CONTINUE)
    assert process.wait() == 0, process.text()
    plan = json.loads((run / "rolled-back" / "1" / "rollback.json").read_text())
    assert (plan["step"], plan["to"]) == (5, 2)
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "reward" in line]
    assert [line["step"] for line in lines] == list(range(1, 6))
    assert all(line["reward"] >= 0 for line in lines)
    assert_state_is_about_one_pass_over_the_store(path, run)
