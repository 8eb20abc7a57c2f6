"""`agentrl tasks profile`: every task measured once, whatever kills it, and what training does."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from agentrl.cli.tasks.measure import profile
from agentrl.config import load_config
from agentrl.config.plan import plan_run
from agentrl.data import TrajectoryStore
from agentrl.data.tasks.pass_rates import read_measured
from agentrl.errors import ConfigError, DataError
from agentrl.runtime.assembly.parts import load_task_sets
from agentrl.runtime.assembly.task_choice import dataset_sections, read_chosen, write_chosen
from agentrl.runtime.launch import train
from agentrl.runtime.progress import Progress
from tests.runtime.tiny_project import Agentrl, agentrl, write_project


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose 12 tasks were measured by the command, beside the data."""
    folder = tmp_path_factory.mktemp("profile")
    file = write_project(folder)
    status, text = agentrl(folder / "out.txt", "tasks", "profile", file, "--n", "4")
    assert status == 0, text
    assert "12 of 12 tasks measured, 12 of them now" in text
    assert "source: profile" in text
    return file


def test_every_task_has_a_line_with_its_interval(measured: Path) -> None:
    found = read_measured(measured.parent / "_train.pass-rates.jsonl")
    assert set(found) == {f"train-{n}" for n in range(12)}
    for item in found.values():
        assert (item.n, item.failed, len(item.scores)) == (4, 0, 4)
        assert item.low is not None
        assert item.mean is not None
        assert item.high is not None
        assert 0 <= item.low <= item.mean <= item.high <= 1
    # A folder of rows takes it for none.
    config = load_config(measured)
    sets = load_task_sets(plan_run(config, measured.parent).tasks)
    assert len(sets.train) == 12


async def test_nothing_is_measured_twice(measured: Path, tmp_path: Path) -> None:
    """Fails if a second call rolls out again, if a task that was changed is taken for measured, or
    if measurements of two models are mixed."""
    config, base = load_config(measured), measured.parent
    file = tmp_path / "rates.jsonl"
    whole = (base / "_train.pass-rates.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    # Killed in the middle of the tenth line.
    file.write_bytes(b"".join(lines[:9]) + lines[9][:30])

    async def again(**values: object) -> int:
        found = await profile(
            config, base=base, model_path=None, out=file, progress=Progress(), **{"n": 4, **values}
        )  # pyright: ignore[reportArgumentType]
        assert len(found.measured) == 12
        return found.new

    assert await again() == 3
    same = {name: item.scores for name, item in read_measured(file).items()}
    assert same == {
        json.loads(line)["task_id"]: tuple(json.loads(line)["scores"]) for line in lines
    }
    assert await again() == 0
    assert await again(n=2) == 0
    torn = [json.loads(line) for line in file.read_bytes().splitlines() if line.endswith(b"}")]
    torn[0]["digest"] = "another"
    file.write_text("".join(json.dumps(line) + "\n" for line in torn))
    assert await again() == 1
    other = load_config(measured, ["rollout.temperature=0.5"])
    with pytest.raises(ConfigError, match=r"at temperature 1, and this is .* at 0\.5; name"):
        await profile(other, base=base, model_path=None, n=4, out=file, progress=Progress())
    for change, words in (
        ("top_p=0.5", r"top_p 1, and the run file says top_p 0\.5 "),
        ("max_turn_tokens=4", "max_turn_tokens 8, and the run file says max_turn_tokens 4 "),
    ):
        other = load_config(measured, [f"rollout.{change}"])
        with pytest.raises(ConfigError, match=words):
            await profile(other, base=base, model_path=None, n=4, out=file, progress=Progress())
    # Files of earlier versions say nothing of limits.
    old = [json.loads(line) for line in file.read_bytes().splitlines()]
    file.write_text("".join(json.dumps({**line, "limits": ""}) + "\n" for line in old))
    assert len((await profile(
        other, base=base, model_path=None, n=4, out=file, progress=Progress()
    )).measured) == 12  # fmt: skip


async def test_two_profiles_do_not_write_one_file(measured: Path, tmp_path: Path) -> None:
    file = tmp_path / "rates.jsonl"
    slow = ["env.args={delay_s: 0.2}", "serving.max_batch_size=2", "--out", file, "--n", "4"]
    process = Agentrl(tmp_path / "out.txt", "tasks", "profile", measured, *slow)
    deadline = time.monotonic() + 60
    while not (file.exists() and file.stat().st_size):
        assert time.monotonic() < deadline, process.text()
        time.sleep(0.02)
    config = load_config(measured)
    with pytest.raises(DataError, match=r"is being written by process \d+ on .*; wait for it"):
        await profile(
            config, base=measured.parent, model_path=None, n=4, out=file, progress=Progress()
        )
    assert process.wait() == 0
    assert len(file.read_bytes().splitlines()) == 12


def test_a_killed_profile_goes_on(measured: Path, tmp_path: Path) -> None:
    """kill -9 after the first task was written down."""
    file = tmp_path / "rates.jsonl"
    slow = ["env.args={delay_s: 0.3}", "serving.max_batch_size=2", "--out", file, "--n", "4"]
    process = Agentrl(tmp_path / "out.txt", "tasks", "profile", measured, *slow)
    deadline = time.monotonic() + 60
    while not (file.exists() and file.stat().st_size):
        assert time.monotonic() < deadline, process.text()
        time.sleep(0.02)
    process.send(9)
    process.wait()
    done = len(read_measured(file))
    assert 1 <= done < 12
    status, text = agentrl(tmp_path / "again.txt", "tasks", "profile", measured, *slow)
    assert status == 0, text
    assert f"12 of 12 tasks measured, {12 - done} of them now" in text


async def test_a_run_draws_tasks_by_weight_and_keeps_to_it(measured: Path, tmp_path: Path) -> None:
    """Fails if weights do not reach the cursor, or if a resume measures anew."""
    rates = tmp_path / "rates.jsonl"
    rows = [
        json.loads(line)
        for line in (measured.parent / "_train.pass-rates.jsonl").read_text().splitlines()
    ]
    for row in rows:
        solved = row["task_id"] == "train-3"
        row["mean"], row["n"] = (0.5, 1000) if solved else (0.0, 1000)
    rates.write_text("".join(json.dumps(row) + "\n" for row in rows))
    weighted = [
        f"dataset.difficulty.source={rates}", "dataset.selection=variance",
        "eval.datasets={}",
        f"run.dir={tmp_path / 'runs'}", "train.steps=2", "log.tensorboard=false",
    ]  # fmt: skip
    config = load_config(measured, weighted)
    result = await train(config, base=measured.parent, progress=Progress())
    store = TrajectoryStore(result.run_dir / "trajectories")
    drawn = {row["task_id"] for row in store.table(["task_id"], "train").to_pylist()}
    assert drawn == {"train-3"}
    named = dataset_sections(plan_run(config, measured.parent).tasks)
    kept = read_chosen(result.run_dir / "tasks.json", named, base=tmp_path)["dataset"]
    assert kept.weights is not None
    rates.unlink()
    again = load_task_sets(plan_run(config, measured.parent).tasks, chosen={"dataset": kept})
    assert again.weights == kept.weights
    write_chosen(tmp_path / "tasks.json", named, again)
    assert read_chosen(tmp_path / "tasks.json", named, base=tmp_path) == {"dataset": kept}


async def test_tasks_that_nothing_can_score_are_an_error(measured: Path, tmp_path: Path) -> None:
    config = load_config(measured, ["env.args={fail: step}", "dataset.limit=2"])
    with pytest.raises(ConfigError, match="no rollout of 2 tasks could be scored"):
        await profile(
            config,
            base=measured.parent,
            model_path=None,
            n=1,
            out=tmp_path / "r",
            progress=Progress(),
        )
    weights = ["eval.datasets.held.selection=variance"]
    with pytest.raises(ConfigError, match=r"held\.selection: unknown key"):
        load_config(measured, weights)
