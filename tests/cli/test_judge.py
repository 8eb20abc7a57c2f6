"""`agentrl judge check`: a judge of a run file against labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentrl.cli.judge import app
from agentrl.errors import ConfigError, DataError
from tests.judges.scripted_judges import CRITERIA, rubric_reply
from tests.served.scripted_server import ScriptedServer

CONFIG = """
model: {{path: nowhere}}
env: {{target: "nothing:Here"}}
dataset: {{source: nothing.jsonl}}
reward:
  functions:
    judge:
      target: agentrl.judges:rubric_judge
      weight: 0.1
      args: {args}
"""


@pytest.fixture
def config(tmp_path: Path, server: ScriptedServer) -> Path:
    model = {"url": server.url, "model": "m", "tries": 1, "price_out": 1e4}
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG.format(args=json.dumps({"model": model, "criteria": CRITERIA})))
    return path


def labelled(path: Path, rows: list[tuple[str, Any]], **more: Any) -> Path:
    lines = [
        json.dumps({"prompt": f"Question {i // 2}", "response": said, "score": label, **more})
        for i, (said, label) in enumerate(rows)
    ]
    path.write_text("\n".join(lines))
    return path


def call(*words: object, status: int = 0) -> str:
    result = CliRunner().invoke(
        app, ["check", *(str(word) for word in words)], catch_exceptions=False
    )
    assert result.exit_code == status, result.output
    return result.stdout


def test_agreement_is_printed(config: Path, tmp_path: Path, server: ScriptedServer) -> None:
    rows = [("4 good", True), ("0 bad", False), ("3 well", 1), ("1 no", 0), ("4 liar", 0)] * 8
    data = labelled(tmp_path / "labels.jsonl", rows)
    text = call(config, "--data", data)
    assert "judge: 40 answers" in text
    assert "accuracy 0.800 [0.652, 0.895]" in text
    assert "Cohen's kappa 0.615 [" in text
    assert "40 requests" in text
    assert "cost 1.2" in text
    found = json.loads(call(config, "--data", data, "--json"))
    assert found["agreement"]["confusion"] == [[16, 8], [0, 16]]
    assert found["agreement"]["mean_score"] == pytest.approx(12 / 20)
    call(config, "--data", data, "--min-kappa", 0.2)
    call(config, "--data", data, "--min-kappa", 0.6, status=1)


def test_other_ranges_and_columns(config: Path, tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    rows = [{"q": 1, "prompt": "x", "answer": [{"role": "assistant", "content": f"{n}"}],
             "stars": n + 1} for n in range(5)]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    words = ("--response", "answer", "--label", "stars", "--range", "1:5", "--json")
    found = json.loads(call(config, "--data", path, *words))["agreement"]
    assert (found["accuracy"], found["kappa"], found["values"]) == (1, 1, [0, 0.25, 0.5, 0.75, 1])


def test_answers_that_could_not_be_judged_are_no_agreement(
    config: Path, tmp_path: Path, server: ScriptedServer
) -> None:
    server.replies[:] = [500]
    data = labelled(tmp_path / "labels.jsonl", [("4", 1), ("0", 0)] * 4)
    text = call(config, "--data", data, status=1)
    assert "judge: 7 answers" in text
    assert "answers that could not be judged: 1" in text
    assert "status 500" in text
    server.always = 404
    assert "answers that could not be judged: 8" in call(config, "--data", data, status=1)


def test_any_reward_function_can_be_measured(tmp_path: Path) -> None:
    source = "def ends_well(row, task):\n    return row.turns[-1].text.endswith(task.label)"
    (tmp_path / "mine.py").write_text(source)
    config = tmp_path / "run.yaml"
    config.write_text(
        CONFIG.format(args="{}").replace("agentrl.judges:rubric_judge", "mine.py:ends_well")
    )
    data = labelled(tmp_path / "labels.jsonl", [("is 4", 1), ("is 5", 0)] * 4, right="4")
    text = call(config, "--data", data, "--reference", "right")
    assert "accuracy 1.000" in text
    assert "requests" not in text


def test_mistakes_are_named(config: Path, tmp_path: Path) -> None:
    data = labelled(tmp_path / "labels.jsonl", [("4", 1), ("0", 0)])
    with pytest.raises(ConfigError, match=r"reward\.functions: got 'jugde'; did you mean 'judge'"):
        call(config, "--data", data, "--function", "jugde")
    with pytest.raises(ConfigError, match="--range '5': expected LOW:HIGH"):
        call(config, "--data", data, "--range", "5")
    with pytest.raises(ConfigError, match="--data is missing"):
        call(config)
    with pytest.raises(DataError, match="no column got 'answer'; valid: response, score"):
        call(config, "--data", data, "--response", "answer")
    with pytest.raises(DataError, match="the label is 3, expected a number from 0 to 1"):
        call(config, "--data", labelled(tmp_path / "x.jsonl", [("4", 3)]))


def test_a_judge_is_held_against_its_earlier_verdicts(
    config: Path, tmp_path: Path, server: ScriptedServer
) -> None:
    """Fails if answers come from the cache: a model that has changed would look the same."""
    text = config.read_text()
    cache = json.dumps(str(tmp_path / "cache"))
    config.write_text(text.replace('"model": "m"', f'"model": "m", "cache": {cache}'))
    data = labelled(tmp_path / "labels.jsonl", [("4 good", 1), ("0 bad", 0)] * 20)
    saved = tmp_path / "verdicts.json"
    call(config, "--data", data, "--save", saved)
    asked = len(server.asked)
    call(config, "--data", data)
    assert len(server.asked) == asked, "without --against the cache answers"
    text = call(config, "--data", data, "--against", saved)
    assert len(server.asked) > asked
    assert "no drift beyond chance" in text
    server.always = rubric_reply(lambda work: min(4, int(work[0]) + 1))
    text = call(config, "--data", data, "--against", saved, status=1)
    assert "mean score 0.500 -> 0.625, difference [0.125, 0.125]" in text
    assert "DRIFTED: mean score" in text
    found = json.loads(call(config, "--data", data, "--against", saved, "--json", status=1))
    assert (found["drift"]["changed"], found["drift"]["drifted"]) == (20, ["mean"])


def test_verdicts_with_holes_are_not_saved(
    config: Path, tmp_path: Path, server: ScriptedServer
) -> None:
    server.replies[:] = [500]
    data = labelled(tmp_path / "labels.jsonl", [("4", 1), ("0", 0)] * 4)
    call(config, "--data", data, "--save", tmp_path / "verdicts.json", status=1)
    assert not (tmp_path / "verdicts.json").exists()


def test_a_function_of_groups_is_given_the_answers_to_one_prompt(tmp_path: Path) -> None:
    """Fails if each answer is judged alone, or the function is left out and all scores are 0."""
    source = (
        "def longest(trajectories, task):\n"
        "    sizes = [len(row.turns[-1].text) for row in trajectories]\n"
        "    return [float(size == max(sizes)) for size in sizes]"
    )
    (tmp_path / "mine.py").write_text(source)
    config = tmp_path / "run.yaml"
    config.write_text(
        CONFIG.format(args="{}").replace("agentrl.judges:rubric_judge", "mine.py:longest")
    )
    data = labelled(tmp_path / "labels.jsonl", [("aaa", 1), ("a", 0), ("aaaaa", 1), ("aaaa", 0)])
    assert "accuracy 1.000" in call(config, "--data", data)
