"""Whole runs with a teacher, through the command line: a checkpoint, the policy, a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from agentrl.metrics.names import find_metric
from agentrl.metrics.sinks import read_metrics
from tests.runtime.tiny_project import agentrl, write_model, write_project
from tests.train.distill.scripted_teacher import ScriptedTeacher, serving


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    lines = list(read_metrics(folder / "runs" / "tiny" / "metrics.jsonl"))
    return [line for line in lines if "distill/reverse_kl" in line]


def test_a_run_comes_to_a_checkpoint_and_goes_on_after_a_resume(tmp_path: Path) -> None:
    """Fails if the teacher is the policy itself, is asked about other rows, or is not there after
    a resume."""
    write_model(tmp_path / "big", seed=1)
    distill = {"teacher": {"path": "big"}, "top_k": 16}
    path = write_project(
        tmp_path, algorithm={"distill": distill, "loss_agg_mode": "token-mean"},
        train__learning_rate=3e-3, train__steps=4, rollout__n_samples_per_prompt=1,
        rollout__prompts_per_step=8,
    )  # fmt: skip
    status, text = agentrl(tmp_path / "dry.log", "train", path, "--dry-run")
    assert status == 0, text
    assert "big beside the policy, top_k 16, coef 1" in text
    status, text = agentrl(tmp_path / "run.log", "train", path)
    assert status == 0, text
    status, text = agentrl(tmp_path / "more.log", "train", path, "train.steps=8", "--resume")
    assert status == 0, text
    lines = metrics_of(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert 0 < lines[-1]["distill/reverse_kl"] < 0.8 * lines[0]["distill/reverse_kl"]
    for name in ("distill/tail_mass", "distill/teacher_tail_mass", "timing_s/teacher"):
        assert find_metric(name) is not None
        assert lines[0][name] > 0


def test_a_run_learns_from_itself_with_a_hint(tmp_path: Path) -> None:
    """Two-turn rollouts. The first step measures the hint alone; fails if the teacher reads the
    student's prompt, where both agree to the bit."""
    hint = {"kind": "hint", "hint": "Say {word} {word} {word}."}
    path = write_project(tmp_path, algorithm={"distill": {"teacher": hint}}, train__steps=2)
    rows = [{"id": f"t{i}", "prompt": f"say {i}", "word": f"w{i}"} for i in range(12)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, text = agentrl(tmp_path / "run.log", "train", path)
    assert status == 0, text
    lines = metrics_of(tmp_path)
    assert len(lines) == 2
    assert all(line["distill/reverse_kl"] != 0.0 for line in lines)
    assert all("train/loss" in line for line in lines)


def test_a_task_without_its_hint_stops_the_run_before_it_begins(tmp_path: Path) -> None:
    hint = {"kind": "hint", "hint": "Say {word}."}
    path = write_project(tmp_path, algorithm={"distill": {"teacher": hint}})
    status, text = agentrl(tmp_path / "run.log", "train", path)
    assert status != 0
    assert "names 'word', but task train-0 has no such column" in " ".join(text.split())
    assert not (tmp_path / "runs" / "tiny" / "metrics.jsonl").exists()


def test_a_run_asks_a_server(tmp_path: Path) -> None:
    """Fails if its answers do not reach the loss, or a server that goes away is passed over."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    write_model(tmp_path / "big", seed=1)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "big", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "big")
    with serving(ScriptedTeacher(model, tokenizer=tokenizer)) as teacher:
        served = {"kind": "served", "url": teacher.url, "model": "big"}
        distill = {"teacher": served, "top_k": 4}
        path = write_project(tmp_path, algorithm={"distill": distill}, train__steps=2)
        status, text = agentrl(tmp_path / "run.log", "train", path)
        assert status == 0, text
        lines = metrics_of(tmp_path)
        assert [line["distill/reverse_kl"] > 0.0 for line in lines] == [True, True]
        teacher.fail = [404] * 99
        status, text = agentrl(tmp_path / "more.log", "train", path, "train.steps=3", "--resume")
    assert status != 0
    assert "status 404: busy" in " ".join(text.split())


def test_a_teacher_of_another_vocabulary_is_refused_by_a_dry_run(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "big", seed=1)
    document = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = document["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(document))
    path = write_project(tmp_path, algorithm={"distill": {"teacher": {"path": "big"}}})
    status, text = agentrl(tmp_path / "dry.log", "train", path, "--dry-run")
    assert status != 0
    assert "another vocabulary than the policy" in " ".join(text.split())
