"""`agentrl doctor` as its user meets it: exit status, words, JSON, hostile names."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from agentrl.cli import main


def doctor(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *map(str, words)])
    return int(ended.value.code or 0)


@pytest.fixture
def ill_run(make_run) -> Path:
    return make_run(
        {
            "reward": [0.3] * 30,
            "kl": [3.0] * 30,
            "tools/by_name/\x1b[31msearch/error": [9.0] * 30,
            "train/loss": [0.1] * 29 + [float("nan")],
            "train/\x1b[2Jloss": [0.1] * 29 + [float("nan")],
        },
        texts=lambda step: "\x1b[2J<b>bold</b> [red]markup[/red]",
    )


def test_a_healthy_run_exits_0(make_run, capsys) -> None:
    run = make_run({"reward": [0.1 + 0.01 * n for n in range(30)], "entropy": [1.0] * 30})
    assert doctor(run) == 0
    text = capsys.readouterr().out
    first = text.splitlines()[0]
    counts = re.search(
        r"30 steps, nothing wrong seen, hacking cannot be told; (\d+) of (\d+) detectors "
        r"judged it, (\d+) did not \(",
        first,
    )
    assert counts, first
    judged, total, missing = map(int, counts.groups())
    assert judged + missing == total
    assert missing == text.count("not judged  ")
    assert "too few steps or missing metrics" in first
    assert "not judged  value_divergence" in text
    # That no detector speaks is no answer where nothing judges the answers but the reward.
    assert "hacked?     cannot be told, since no score stands beside the reward: " in text


def test_a_run_without_a_step_is_not_called_sound(make_run, capsys) -> None:
    run = make_run({"reward": [0.1]})
    assert doctor(run) == 0
    assert ": 1 step, nothing wrong seen, hacking cannot be told; " in capsys.readouterr().out
    (run / "metrics.jsonl").write_text('{"step": 0, "time": 1.0, "eval/held/score": 0.1}\n')
    assert doctor(run) == 0
    assert ": 0 steps, not enough data yet; " in capsys.readouterr().out


def test_findings_exit_1_with_evidence_levers_and_where_to_look(ill_run, capsys) -> None:
    assert doctor(ill_run) == 1
    text = capsys.readouterr().out
    assert "FAIL kl_too_large: kl is above 2 nats a token" in text
    assert "(since step 1)" in text
    assert "saw    kl up to 3 for 30 steps, 1-30" in text
    assert "  algorithm.kl_coef: 0.01 (is 0.0)" in text
    assert text.count("train.learning_rate: ") == 1, "one value a key"
    assert "1 cause" in text.splitlines()[0] or "causes" in text.splitlines()[0]
    assert "FAIL not_finite: train/\\e[2Jloss is not a number since step 30" in text
    assert "saw    train/loss is NaN or infinite in 1 steps, first in step 30" in text
    assert "agentrl inspect" in text
    assert "\x1b" not in text, "nothing that the run wrote reaches the terminal"
    assert "'\\x1b[31msearch'" in text
    assert "saw    train/\\e[2Jloss" in text


def test_the_command_shown_shows_the_rollout(ill_run, capsys) -> None:
    doctor(ill_run)
    line = next(
        line for line in capsys.readouterr().out.splitlines() if "agentrl traj show" in line
    )
    words = shlex.split(line)
    main_words = words[1:]
    with pytest.raises(SystemExit) as ended:
        main(main_words)
    assert not ended.value.code
    assert f"rollout {words[-1]}" in capsys.readouterr().out


def test_json_holds_every_verdict(ill_run, capsys) -> None:
    assert doctor(ill_run, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["status"] == "fail"
    assert report["steps"] == 30
    assert len(report["verdicts"]) > 20
    kl = next(v for v in report["verdicts"] if v["detector"] == "kl_too_large")
    assert kl["levers"][0]["key"] == "algorithm.kl_coef"
    named = [name for one in report["causes"] for name in (one["detector"], *one["follows"])]
    found = [v["detector"] for v in report["verdicts"] if v["status"] in ("warn", "fail")]
    assert sorted(named) == sorted(found)
    keys = [lever["key"] for lever in report["levers"]]
    assert len(keys) == len(set(keys)) > 0


def test_thresholds_are_listed_and_set(ill_run, capsys) -> None:
    assert doctor("--thresholds") == 0
    assert "kl_too_large/bound" in capsys.readouterr().out
    doctor(ill_run, "--set", "kl_too_large/bound=100")
    assert "kl_too_large:" not in capsys.readouterr().out
    for word, said in (("kl=x", "NAME=NUMBER"), ("kl_too_large/bond=1", "did you mean")):
        assert doctor(ill_run, "--set", word) == 2
        assert said in capsys.readouterr().err


def test_a_mistake_is_one_message(tmp_path: Path, capsys) -> None:
    assert doctor() == 2
    assert doctor(tmp_path) == 2
    assert doctor(tmp_path / "nowhere") == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_torn_run_is_judged_by_what_is_left(ill_run, capsys) -> None:
    (ill_run / "config.yaml").write_text("\x00")
    path = ill_run / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    (ill_run / "trajectories" / "train" / "step_000030.parquet").write_bytes(b"PAR1")
    assert doctor(ill_run) == 1
    text = capsys.readouterr().out
    assert text.count("note ") == 3
    assert "kl_too_large" in text


def test_doctor_answers_as_the_view_of_hacking_does(ill_run, capsys) -> None:
    """Fails if one is sure of what the other cannot tell."""
    from agentrl.inspect.pages.hacking.answer import hacking_answer
    from agentrl.inspect.read.reader import RunReader
    from agentrl.inspect.read.runs import FoundRun

    doctor(ill_run)
    view = hacking_answer(RunReader(FoundRun(id="x", path=ill_run)))
    text = " ".join(capsys.readouterr().out.split())
    assert f"hacked? {view['word']}: {view['headline']}" in text
    doctor(ill_run, "--json")
    assert json.loads(capsys.readouterr().out)["hacked"]["level"] == view["level"]
