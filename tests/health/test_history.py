"""Runs as they lie around: growing, torn, of another version, without permission, hostile."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path

import pytest

from agentrl.data import TrajectoryStore
from agentrl.errors import RunError
from agentrl.health import diagnose, facts_of, read_history, rollouts_of_step, sampled_steps
from agentrl.types import Termination


def test_a_whole_run_is_read_with_its_config_and_rollouts(make_run) -> None:
    run = make_run(
        {"reward": [0.1, 0.2, 0.3]}, texts=lambda step: f"text {step}", changes=["run.seed=4"]
    )
    history = read_history(run)
    assert history.notes == ()
    assert history.metrics["reward"].steps == (1, 2, 3)
    assert history.config["run.seed"] == 4
    assert history.config["algorithm.eps_clip_high"] == 0.2, "the preset is resolved"
    first = history.rollouts[0]
    assert (first.step, first.task_id, first.rollout_id) == (1, "task 0", "1/0/0")
    assert (first.advantage, first.action_tokens, first.turns) == (0.5, 2, 1)
    assert (first.tool_calls, first.tool_errors, first.text) == (1, 1, "text 1")
    assert len(history.rollouts) == 3 * 8
    stored = next(TrajectoryStore(run / "trajectories").read("train", step=1)).trajectory
    assert facts_of([stored], step=1, kind="train", advantage=0.5) == first


def test_whole_groups_are_sampled(make_run) -> None:
    run = make_run({"reward": [0.1]}, texts=lambda step: "text")
    assert len(read_history(run, rollouts_per_step=3).rollouts) == 4
    assert read_history(run, rollouts_per_step=0).rollouts == ()
    assert len(rollouts_of_step(TrajectoryStore(run / "trajectories"), "train", 1, 99)) == 8


def test_steps_at_both_ends_are_always_sampled() -> None:
    assert sampled_steps(range(5, 12)) == [5, 6, 7, 8, 9, 10, 11]
    many = sampled_steps(range(1, 1001))
    assert len(many) == 16
    assert many[:4] == [1, 2, 3, 4]
    assert many[-6:] == [995, 996, 997, 998, 999, 1000]


def test_broken_numbers_and_lines_are_kept_apart(tmp_path: Path) -> None:
    lines = [
        b'{"step": 2, "reward": 0.5, "train/loss": null, "name": "x", "flag": true}',
        b'{"step": 1, "reward": 0.25, "huge": ' + b"9" * 400 + b"}",
        b'{"step": 2, "reward": 0.75}',
        b'{"step": "3", "reward": 9}',
        b"[" * 100_000,
        b"\xff\xfe not utf-8",
        b"x" * (3 * 2**20),
        b'{"step": 4, "rew',
    ]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    history = read_history(tmp_path)
    assert history.metrics["reward"].steps == (1, 2)
    assert history.metrics["reward"].values == (0.25, 0.75), "a later line wins"
    assert history.not_finite == {"train/loss": (2,), "huge": (1,)}
    assert set(history.metrics) == {"reward"}
    assert any("torn" in note for note in history.notes)
    assert any("config.yaml" in note for note in history.notes)


def test_a_config_of_another_version_still_gives_its_keys(make_run) -> None:
    run = make_run({"reward": [0.1]})
    path = run / "config.yaml"
    path.write_text(path.read_text() + "tomorrow:\n  key: 7\n")
    history = read_history(run)
    assert history.config["tomorrow.key"] == 7
    assert any("tomorrow" in note for note in history.notes)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
        "!!python/object/apply:os.system ['touch /tmp/never']",
        "\x00\x01",
        "- 1\n- 2\n",
    ],
)
def test_a_hostile_config_is_a_note(make_run, text: str) -> None:
    run = make_run({"reward": [0.1]})
    (run / "config.yaml").write_text(text)
    assert read_history(run).notes


@pytest.mark.parametrize("kind", ["mapping named a million times", "nested", "long", "large"])
def test_a_config_that_would_take_forever_is_not_read(make_run, kind: str) -> None:
    run = make_run({"reward": [0.1]})
    names = "abcdefghij"
    lines = ["a: &a {k: 1}"]
    for one, before in zip(names[1:], names, strict=False):
        inner = ", ".join(f"k{n}: *{before}" for n in range(10))
        lines.append(f"{one}: &{one} {{{inner}}}")
    texts = {"nested": "{" * 100_000, "long": "[" + "1, " * 60_000 + "1]"}
    texts["large"] = "#" * 2**20
    (run / "config.yaml").write_text(texts.get(kind, "\n".join(lines)))
    began = time.process_time()
    history = read_history(run)
    assert time.process_time() - began < 10
    assert history.config == {}
    assert any("was not read" in note for note in history.notes)


def test_torn_trajectories_are_notes(make_run) -> None:
    run = make_run({"reward": [0.1, 0.2]}, texts=lambda step: "text")
    path = run / "trajectories" / "train" / "step_000001.parquet"
    path.write_bytes(path.read_bytes()[:200])
    history = read_history(run)
    assert {fact.step for fact in history.rollouts} == {2}
    assert any("step 1" in note for note in history.notes)


def test_a_read_only_copy_is_read(make_run, tmp_path: Path) -> None:
    run = make_run({"reward": [0.1]}, texts=lambda step: "text")
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    for path in [*copy.rglob("*"), copy]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(copy.rglob("*"))
    assert read_history(copy).rollouts
    assert sorted(copy.rglob("*")) == before
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o755)


def test_what_is_no_run_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not exist"):
        read_history(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="is not a directory"):
        read_history(tmp_path / "file")
    with pytest.raises(RunError, match=r"has none of metrics\.jsonl"):
        read_history(tmp_path)


def test_a_run_of_one_step_is_judged_without_a_word(make_run) -> None:
    run = make_run({"reward": [0.1]}, texts=lambda step: "text")
    verdicts = diagnose(read_history(run))
    assert {str(v.status) for v in verdicts} <= {"ok", "unknown"}


def test_long_texts_are_cut_at_both_ends(make_run) -> None:
    run = make_run({"reward": [0.1]}, texts=lambda step: "a" * 10**6 + "z")
    text = read_history(run).rollouts[0].text
    assert len(text) == 20_000
    assert text.endswith("z")


def test_terminations_are_names_of_the_record(make_run) -> None:
    run = make_run({"reward": [math.inf]}, texts=lambda step: "text")
    assert read_history(run).rollouts[0].termination == Termination.ENV_DONE
