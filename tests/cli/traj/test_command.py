from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli.traj.command import app
from agentrl.data import TrajectoryStore
from agentrl.data.store.trajectory_store import write_rows
from agentrl.errors import AgentrlError, RunError
from agentrl.inspect.read.safe_terminal import visible
from agentrl.types import CallStatus, Termination, ToolCall, ToolResult, ToolStatus, Turn
from tests.data.records import group, trajectory

BIDI = "\u202egnp.exe"
HOSTILE = f"[red]bold[/red]\x1b]0;owned\x07\x1b[2J\r\x00\ud800\x9b31m{BIDI}\u200b"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two training steps of six rollouts and one evaluation."""
    path = tmp_path / "my-run"
    path.mkdir()
    (path / "config.yaml").write_text("")
    store = TrajectoryStore(path / "trajectories")
    for step in (1, 2):
        groups = []
        for task in ("add", "sub"):
            rows = [
                trajectory(
                    task_id=task,
                    group_id=f"{step}-{task}",
                    rollout_id=f"{step}-{task}-{n}",
                    reward=n / 2 if task == "add" else -n / 2,
                )
                for n in range(3)
            ]
            groups.append(group(*rows))
        store.write(step, "train", groups, {"2-add-2": 0.75})
    store.write(0, "eval/held out", [group(trajectory(rollout_id="e0", score=0.5))])
    return path


def call(*arguments: object) -> str:
    words = [str(argument) for argument in arguments]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def shown(text: str) -> list[str]:
    return re.findall(r"rollout (\S+)", text)


def test_a_run_that_only_evaluated_is_shown_as_eval_says(tmp_path: Path) -> None:
    """`agentrl eval` ends with `agentrl traj show DIR`, where nothing was trained."""
    store = TrajectoryStore(tmp_path / "trajectories")
    store.write(0, "eval/held out", [group(trajectory(rollout_id="e0", score=0.5))])
    assert shown(call("show", tmp_path)) == ["e0"]


def test_the_default_is_the_best_and_worst_two_of_the_last_step(run: Path) -> None:
    assert shown(call("show", run)) == ["2-add-2", "2-add-1", "2-sub-2", "2-sub-1"]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--best", 1], ["2-add-2"]),
        (["--worst", 1, "--step", 1], ["1-sub-2"]),
        (["--step", "first", "--best", 1], ["1-add-2"]),
        (["--task", "sub"], ["2-sub-0", "2-sub-1", "2-sub-2"]),
        (["--task", "sub", "--best", 1, "--worst", 1], ["2-sub-0", "2-sub-2"]),
        (["--rollout", "1-add-1"], ["1-add-1"]),
        (["--kind", "eval/held out"], ["e0"]),
        (["--best", 4, "--worst", 4],
         ["2-add-2", "2-add-1", "2-add-0", "2-sub-0", "2-sub-2", "2-sub-1"]),
        (["--task", "add", "--best", 9, "--worst", 9], ["2-add-2", "2-add-1", "2-add-0"]),
    ],
)  # fmt: skip
def test_what_is_chosen(options: list[object], ids: list[str], run: Path) -> None:
    # Fails if a rollout is shown as best and as worst, or if a task is looked for in one step.
    assert shown(call("show", run, *options)) == ids


def test_a_rollout_is_told_turn_by_turn(run: Path) -> None:
    text = call("show", run, "--rollout", "2-add-2")
    for part in (
        "reward = score 1 (tests 1)  advantage +0.750  ended by env_done",
        "prompt 3 tokens, response 4 (3 sampled), weights 3-4, temperature 1",
        "logs (depth 2)",
        "-- prompt (3 tokens)\nadd 1",
        "-- assistant, turn 1 of 2 (2 tokens, 0.00 s, reward 0)\nadd(1)",
        "call add ok",
        "-- tool, after turn 1 (1 tokens, 0.00 s)\n1",
        "result add ok 0.50 s",
        "-- assistant, turn 2 of 2 (1 tokens, 0.00 s, stop, reward 1)\ndone",
    ):
        assert part in text, part
    # What the model wrote is the call: its arguments are not printed again.
    assert '{"a": 1}' not in text
    assert "position" not in text


def test_tokens_are_listed_with_mask_and_log_probabilities(run: Path) -> None:
    lines = call("show", run, "--rollout", "2-add-2", "--tokens").splitlines()
    rows = [line.split() for line in lines if re.match(r"\s+\d+\s+\d+\s+[01]\s", line)]
    assert rows == [
        ["0", "10", "1", "-0.5000", "3"],
        ["1", "11", "1", "-0.2500", "3"],
        ["2", "12", "0", "0.0000", "-1"],
        ["3", "13", "1", "-0.1250", "4"],
    ]


def test_token_texts_come_from_the_tokenizer_of_a_checkpoint(run: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = {f"w{n}": n for n in range(20)}
    folder = run / "checkpoints" / "step-1"
    folder.mkdir(parents=True)
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    text = call("show", run, "--rollout", "2-add-2", "--tokens")
    assert re.search(r'10\s+1\s+-0.5000\s+3\s+"w10"', text)
    (folder / "tokenizer.json").write_text("torn")
    assert '"w10"' not in call("show", run, "--rollout", "2-add-2", "--tokens")


def test_long_texts_are_shortened_unless_asked_for(run: Path) -> None:
    body = "a" * 3000 + "MIDDLE" + "b" * 3000
    store = TrajectoryStore(run / "trajectories")
    turn = Turn(role="user", start=0, end=4, text=body)
    store.write(3, "train", [group(trajectory(turns=(turn,)))])
    short = call("show", run)
    assert "4006 characters left out" in short
    assert "MIDDLE" not in short
    assert body in call("show", run, "--full")


def test_hostile_text_is_shown_and_not_obeyed(run: Path) -> None:
    # Fails if text is printed as it is, or read as markup: the ESC would reach the terminal, and
    # [red] would be gone.
    bad_call = ToolCall(
        id="c", name=HOSTILE, arguments={HOSTILE: HOSTILE}, raw="", error=HOSTILE,
        status=CallStatus.MALFORMED,
    )  # fmt: skip
    result = ToolResult(text=HOSTILE, name=HOSTILE, status=ToolStatus.ERROR)
    turn = Turn(
        role="tool", start=0, end=4, text="...", tool_calls=(bad_call,), tool_results=(result,)
    )
    row = trajectory(
        task_id=HOSTILE,
        rollout_id=HOSTILE,
        group_id=HOSTILE,
        prompt_text=HOSTILE,
        turns=(turn,),
        reward_parts={HOSTILE: 1.0},
        extra_logs={HOSTILE: 1.0},
        termination=Termination.ENV_CRASHED,
        termination_detail=HOSTILE,
    )
    TrajectoryStore(run / "trajectories").write(9, f"eval/{HOSTILE}", [group(row)])
    for text in (call("show", run, "--kind", f"eval/{HOSTILE}"), call("list", run)):
        assert not set(text) & set("\x1b\x07\r\x00\x9b\u202e\u200b")
        assert not any(0xD800 <= ord(c) < 0xE000 for c in text)
    text = call("show", run, "--kind", f"eval/{HOSTILE}")
    assert text.count("[red]bold[/red]\\e]0;owned\\x07\\e[2J\\r\\0\\ud800\\x9b31m\\u202e") >= 8
    for command in (["show", run, "--kind", HOSTILE], ["show", run, "--rollout", HOSTILE]):
        with pytest.raises(AgentrlError) as caught:
            call(*command)
        assert "\x1b" not in str(caught.value)


def test_hostile_text_is_not_obeyed_by_a_terminal_either(run: Path) -> None:
    # With colours the output has escape sequences of its own, so those of the text are sought.
    turn = Turn(role="tool", start=0, end=4, text=HOSTILE)
    TrajectoryStore(run / "trajectories").write(9, "train", [group(trajectory(turns=(turn,)))])
    result = CliRunner().invoke(
        app, ["show", str(run)], catch_exceptions=False, env={"FORCE_COLOR": "1", "TERM": "xterm"}
    )
    assert "\x1b[" in result.stdout
    assert "[red]bold[/red]" in result.stdout
    for sequence in ("\x1b]0;", "\x1b[2J", "\x07", "\r", "\x00", "\x9b", "\u202e"):
        assert sequence not in result.stdout


def test_visible_keeps_what_prints() -> None:
    assert visible("h\u00e9llo \u4f60\n\tok\xa0\U0001f600").plain == (
        "h\u00e9llo \u4f60\n\tok\xa0\U0001f600"
    )
    assert visible("\u2028\x7f\U000e0041").plain == "\\u2028\\x7f\\U000e0041"


def test_ten_megabytes_are_printed_in_a_moment(run: Path) -> None:
    turn = Turn(role="tool", start=0, end=4, text="\x1b[31mx\n" * 1_400_000)
    store = TrajectoryStore(run / "trajectories")
    store.write(3, "train", [group(trajectory(turns=(turn,)))])
    assert len(call("show", run)) < 10_000


def test_a_rollout_of_several_rows_counts_once(run: Path) -> None:
    rows = [
        trajectory(rollout_id="r", row_index=n, group_id="g", response_ids=(n,) * 4) for n in (1, 0)
    ]
    TrajectoryStore(run / "trajectories").write(3, "train", [group(*rows)])
    text = call("show", run)
    assert text.count("rollout r ") == 1
    assert text.index("row 1 of 2") < text.index("row 2 of 2")
    assert "response 8 (6 sampled)" in text


def test_untrusted_rewards_are_not_ranked(run: Path) -> None:
    store = TrajectoryStore(run / "trajectories")
    rows = [trajectory(rollout_id=str(n), reward=None) for n in range(3)]
    store.write(3, "train", [group(*rows)])
    assert "no reward can be trusted" in call("show", run)
    store.write(3, "train", [group(*rows, trajectory(rollout_id="ok", reward=-1.0))])
    assert shown(call("show", run)) == ["ok"]


def test_list_counts_and_averages(run: Path) -> None:
    lines = [line.replace("\u2502", " ").split() for line in call("list", run).splitlines()]
    assert ["train", "1", "2", "6", "0", "1", "env_done", "6"] in lines
    assert ["eval/held", "out", "0", "1", "1", "1", "0.500", "env_done", "1"] in lines


def test_export_as_json_lines(run: Path, tmp_path: Path) -> None:
    store = TrajectoryStore(run / "trajectories")
    store.write(3, "train", [group(trajectory(reward=float("nan"), task_id="\ud800"))])
    out = tmp_path / "deep" / "all.jsonl"
    assert call("export", run, "-o", out) == f"14 trajectories in {out}\n"
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    first = next(row for row in rows if row["rollout_id"] == "2-add-2")
    assert first["advantage"] == 0.75
    assert first["turns"][0]["tool_calls"][0]["arguments"] == {"a": 1}
    assert rows[12]["reward"] is None
    assert rows[12]["task_id"] == "\ud800"
    fields = {field.name for field in dataclasses.fields(trajectory())}
    assert set(first) == fields | {"step", "kind", "advantage", "labels"}


def test_export_as_parquet_holds_the_same_rows(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy" / "trajectories" / "train" / "step_000000.parquet"
    call("export", run, "-o", out, "--kind", "train", "--step", "last")
    copied = list(TrajectoryStore(tmp_path / "copy" / "trajectories").read())
    assert copied == list(TrajectoryStore(run / "trajectories").read("train", step=2))
    assert write_rows(tmp_path / "again.parquet", iter(copied)) == 6


def fails(words: Sequence[object]) -> str:
    with pytest.raises(RunError) as caught:
        call(*words)
    return str(caught.value)


def test_what_cannot_be_shown_is_explained(run: Path, tmp_path: Path) -> None:
    assert "did you mean 'my-run'" in fails(["show", tmp_path / "my-rum"])
    assert "is not a run directory" in fails(["show", tmp_path])
    assert "did you mean '2-add-2'" in fails(["show", run, "--rollout", "2-add-22"])
    assert "there are ['1-add-0'" in fails(["show", run, "--rollout", "zzzz"])
    assert "and 7 more" in fails(["show", run, "--rollout", "zzzz"])
    assert "did you mean 'sub'" in fails(["show", run, "--task", "suv"])
    assert "2 steps from 1 to 2" in fails(["show", run, "--step", "7"])
    assert "expected a number, 'first' or 'last'" in fails(["show", run, "--step", "-x"])
    assert "did you mean 'eval/held out'" in fails(["show", run, "--kind", "eval/heldout"])
    assert "valid: atif, html, jsonl, parquet" in fails(["export", run, "-o", tmp_path / "x.txt"])
    assert "valid: eval/held out, train" in fails(
        ["export", run, "-o", tmp_path / "x.jsonl", "--kind", "eval"]
    )
    empty = tmp_path / "young"
    empty.mkdir()
    (empty / "config.yaml").write_text("")
    assert "has no trajectories yet" in fails(["show", empty])
    assert "has no trajectories yet" in fails(["list", empty])


def test_a_damaged_step_is_said(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = TrajectoryStore(run / "trajectories").path(2, "train")
    path.write_bytes(path.read_bytes()[:100])
    assert "no rollouts" in fails(["show", run])
    assert "torn or damaged" in caplog.text
    assert shown(call("show", run, "--step", "first", "--best", 1)) == ["1-add-2"]
