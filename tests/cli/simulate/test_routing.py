"""`agentrl simulate routing` as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.data import TrajectoryStore
from agentrl.types import Termination, Trajectory, TrajectoryGroup, Turn

POLICIES = ("random", "round-robin", "least-loaded", "sticky", "sticky + re-pin")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["simulate", "routing", *words])
    captured = capsys.readouterr()
    return int(caught.value.code or 0), captured.out, captured.err


def stored_run(folder: Path, *, turns: int = 2) -> Path:
    """A run whose second step has two conversations."""
    store = TrajectoryStore(folder / "trajectories")
    for step, count in ((0, 1), (1, 2)):
        rows = tuple(
            Trajectory(
                task_id="t",
                group_id="g",
                rollout_id=f"r{index}",
                prompt_ids=(1,) * 1000,
                response_ids=(2,) * (10 * turns),
                response_mask=(1,) * (10 * turns),
                rollout_log_probs=(0.0,) * (10 * turns),
                policy_versions=(0,) * (10 * turns),
                turns=tuple(
                    Turn(role="assistant", start=10 * i, end=10 * i + 10, text="")
                    for i in range(turns)
                ),
                termination=Termination.ENV_DONE,
            )
            for index in range(count)
        )
        store.write(step, "train", [TrajectoryGroup(group_id="g", task_id="t", trajectories=rows)])
    return folder


def test_it_prints_a_row_for_every_policy_and_the_same_again_for_the_same_seed(capsys):
    """Fails if anything depends on the clock, the order of a set, or an unseeded draw."""
    words = ("--sessions", "32", "--servers", "3", "--seed", "4")
    status, out, err = run(capsys, *words)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("32 conversations, ")
    assert [line for line in lines if line.startswith(POLICIES)] == lines[-5:]
    assert all(len(line) <= 80 for line in lines)
    assert run(capsys, *words)[1] == out
    assert run(capsys, *words[:-1], "5")[1] != out


def test_options_reach_the_model(capsys):
    _, out, _ = run(capsys, "--sessions", "16", "--alpha", "0", "--moves", "0")
    sticky, moving = out.splitlines()[-2:]
    assert sticky.split()[1:] == moving.split()[3:]
    _, slow, _ = run(capsys, "--sessions", "16", "--alpha", "0", "--moves", "0", "--step-ms", "99")
    assert float(slow.splitlines()[-1].split()[3]) > float(moving.split()[3])
    _, bare, _ = run(capsys, "--sessions", "16", "--cache-tokens", "0")
    assert {line.split()[-3] for line in bare.splitlines()[-5:]} == {"0.000"}


def test_conversations_at_once_can_be_bounded(capsys):
    few = ("--servers", "1", "--sessions", "12", "--sigma", "0", "--max-sequences", "2")
    _, together, _ = run(capsys, *few)
    _, bounded, _ = run(capsys, *few, "--at-once", "1")
    _, follows, _ = run(capsys, *few, "--at-once", "auto")
    assert makespan(bounded) > makespan(together)
    assert makespan(follows) < makespan(bounded)
    code, _, err = run(capsys, "--at-once", "0")
    assert (code, "all, auto or a number from 1" in err) == (2, True)


def makespan(text: str) -> float:
    """Seconds of the sticky policy."""
    (row,) = (line for line in text.splitlines() if line.startswith("sticky  "))
    return float(row.split()[1])


def test_turns_of_a_run_are_replayed(capsys, tmp_path):
    folder = str(stored_run(tmp_path))
    status, out, err = run(capsys, folder, "--servers", "2")
    assert (status, err) == (0, "")
    assert out.startswith("2 conversations, 4 turns, servers: 2")
    assert run(capsys, folder, "--step", "first")[1].startswith("1 conversations, 2 turns")
    assert run(capsys, folder, "--sessions", "1")[1].startswith("1 conversations, 2 turns")


def test_mistakes_are_one_message(capsys, tmp_path):
    status, _, err = run(capsys, str(tmp_path / "nowhere"))
    assert status == 2
    assert "does not exist" in err
    assert run(capsys, "--servers", "0")[0] == 2
    assert run(capsys, "--alpha", "-1")[0] == 2
    assert run(capsys, "--alpha", "nan")[0] == 2
    status, _, err = run(capsys, "--tool-s", "inf")
    assert (status, "--tool-s inf" in err) == (2, True)
    folder = str(stored_run(tmp_path / "run"))
    status, _, err = run(capsys, folder, "--step", "7")
    assert status == 2
    assert "--step 7: not stored; there are 2 steps from 0 to 1" in err
    empty = str(stored_run(tmp_path / "empty", turns=0))
    status, _, err = run(capsys, empty)
    assert status == 2
    assert "has no trajectory with a sampled turn" in err
