"""Rules in real processes: killed in a rollback, paused and answered, ended with a status."""

import json
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from agentrl.data import TrajectoryStore
from agentrl.disk.pause import read_pause
from agentrl.metrics.sinks import read_metrics
from tests.runtime.one_pass import assert_weights_are_one_pass_over_the_store, stored_tasks
from tests.runtime.tiny_project import Agentrl, agentrl, write_model, write_project

POOR = '''
from pathlib import Path

RUN = Path(__file__).parent / "runs" / "tiny"


def poor():
    """From the third step to the first rollback, as the disk has them."""
    if (RUN / "rolled-back").exists() or not (RUN / "metrics.jsonl").exists():
        return False
    return (RUN / "metrics.jsonl").read_text().count('"reward"') >= 3
'''


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model")


def project(folder: Path, model: Path, *rules: str, **changes: object) -> Path:
    """A run whose rewards are -1 from its fourth step on, until it is rolled back."""
    folder.mkdir(exist_ok=True)
    shutil.copytree(model, folder / "model")
    path = write_project(
        folder,
        env__args={"delay_s": 0.02},
        health__rules=list(rules),
        checkpoint__every_steps=1,
        **{"train__steps": 7, **changes},
    )
    text = (folder / "vowels.py").read_text() + POOR
    paid = text.replace("rewards=share,", "rewards=-1.0 if poor() else share,")
    assert paid != text
    (folder / "vowels.py").write_text(paid)
    return path


def test_kill_9_around_a_rollback(model: Path, tmp_path: Path) -> None:
    """Fails if a resume goes on from the checkpoint of the collapse, or mixes its steps in."""
    path = project(tmp_path, model, "reward < 0 for 2 steps -> rollback")
    run, moments = tmp_path / "runs" / "tiny", random.Random(0)
    process = Agentrl(tmp_path / "out.txt", "train", path)
    process.wait_for("going back from step 5 to step 2")
    for attempt in range(4):
        time.sleep(moments.uniform(0, 0.4))
        process.send(signal.SIGKILL)
        assert process.wait() in (0, -signal.SIGKILL), process.text()
        process = Agentrl(tmp_path / f"out{attempt}.txt", "train", run, "--resume")
    assert process.wait() == 0, process.text()
    plan = json.loads((run / "rolled-back" / "1" / "rollback.json").read_text())
    assert (plan["step"], plan["to"]) == (5, 2)
    assert len(list((run / "rolled-back").iterdir())) == 1
    aside = TrajectoryStore(run / "rolled-back" / "1" / "trajectories")
    assert aside.steps("train") == [3, 4, 5]
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "reward" in line]
    assert [line["step"] for line in lines] == list(range(1, 8))
    assert all(line["reward"] >= 0 for line in lines)
    assert sorted(stored_tasks(run)) == list(range(1, 8))
    assert_weights_are_one_pass_over_the_store(path, run)


def test_the_status_says_that_a_rule_ended_the_run(model: Path, tmp_path: Path) -> None:
    path = project(tmp_path, model, "reward < 0 for 2 steps -> stop")
    status, text = agentrl(tmp_path / "out.txt", "train", path)
    assert status == 3, text
    assert "reward was -1, -1 at steps 4-5" in text
    assert "change health.rules: agentrl train" in text
    run = tmp_path / "runs" / "tiny"
    result = json.loads((run / "result.json").read_text())
    assert result["rule"]["evidence"] == "reward was -1, -1 at steps 4-5"
    assert "reward < 0 for 2 steps -> stop" in (run / "run.log").read_text()
    status, text = agentrl(tmp_path / "again.txt", "train", run, "--resume", "health.rules=[]")
    assert status == 0, text


def test_a_paused_run_is_answered_from_the_command_line(model: Path, tmp_path: Path) -> None:
    """Fails if an answer needs the process that asked, or if a kill in a pause costs anything."""
    path = project(tmp_path, model, "reward < 0 for 2 steps -> pause")
    run = tmp_path / "runs" / "tiny"
    status, text = agentrl(tmp_path / "early.txt", "control", tmp_path, "continue")
    assert status == 2
    assert "is not a run directory" in text
    process = Agentrl(tmp_path / "out.txt", "train", path)
    process.wait_for("answer it: agentrl control")
    status, text = agentrl(tmp_path / "odd.txt", "control", run, "carry-on")
    assert (status, "expected continue, stop" in text) == (2, True)
    # The machine goes down meanwhile, and the answer is given before it comes back.
    process.send(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    pause = read_pause(run / "control")
    assert pause is not None
    assert pause.step == 5
    status, text = agentrl(tmp_path / "answer.txt", "control", run, "continue")
    assert (status, "told to continue after step 5" in text) == (0, True)
    status, text = agentrl(tmp_path / "on.txt", "train", run, "--resume")
    assert status == 0, text
    assert "told to continue" in text
    status, text = agentrl(tmp_path / "late.txt", "control", run, "stop")
    assert (status, "is not paused" in text) == (2, True)
    events = [json.loads(line) for line in (run / "health.jsonl").read_text().splitlines()]
    decisions = [event["action"] for event in events if event["what"] == "decision"]
    assert decisions == ["pause", "continue"]
    assert sorted(stored_tasks(run)) == list(range(1, 8))
    assert_weights_are_one_pass_over_the_store(path, run)


def test_ctrl_c_ends_a_paused_run(model: Path, tmp_path: Path) -> None:
    path = project(tmp_path, model, "reward < 0 for 2 steps -> pause")
    process = Agentrl(tmp_path / "out.txt", "train", path)
    process.wait_for("answer it: agentrl control")
    process.send(signal.SIGINT)
    assert process.wait(120) == 130, process.text()
    assert "--resume" in process.text()
    assert "Traceback" not in process.text()


@pytest.mark.parametrize("rule", ["kl >> 2 -> stop", "grad_norm > 2 -> stop"])
def test_a_rule_that_cannot_be_read_ends_before_a_model_is_loaded(
    model: Path, tmp_path: Path, rule: str
) -> None:
    path = project(tmp_path, model, rule)
    status, text = agentrl(tmp_path / "out.txt", "train", path)
    assert (status, "health.rules[0]" in text) == (2, True)
    assert not (tmp_path / "runs").exists()
