"""`agentrl env new`: what it writes is checked, tried and trained as it is."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.cli.env.scaffold import KINDS, scaffold
from agentrl.config import load_config
from agentrl.config.sandboxes import sandbox_section
from agentrl.data import load_tasks
from agentrl.preflight.attack.player import AttackPlayer
from agentrl.rollout.adapters.adapt import load_env_class
from agentrl.runtime.assembly.parts import open_sandboxes
from agentrl.testing import ByteTokenizer
from tests.runtime.tiny_project import agentrl, write_model


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([*map(str, words)])
    return int(left.value.code or 0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_clean_and_knows_the_solution_of_every_task(tmp_path, capsys, kind):
    """Fails if a template, a row or a solution of any kind is wrong."""
    flags = [] if kind == "tools" else [f"--{kind}"]
    assert run("env", "new", "my_prices", *flags, "--out", tmp_path) == 0
    names = ["held_out.jsonl", "my_prices.py", "my_prices.yaml", "tasks.jsonl", "test_my_prices.py"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    for file in (tmp_path / "my_prices.py", tmp_path / "test_my_prices.py"):
        words = ("check", "--select", "E,F,I,B", "--line-length", "100", "--isolated", file)
        done = subprocess.run(
            [Path(sys.executable).parent / "ruff", *words], cwd=tmp_path, capture_output=True
        )
        assert done.returncode == 0, done.stdout.decode()
    config = load_config(tmp_path / "my_prices.yaml")
    train = load_tasks(config.dataset, base=tmp_path)
    held_out = load_tasks(config.eval.datasets["held_out"], base=tmp_path)
    assert (len(train), len(held_out)) == (24, 12)
    assert len({task.prompt for task in train + held_out}) == 36
    assert run("env", "check", tmp_path / "my_prices.py") == 0, capsys.readouterr().out
    assert "Nothing found (3 tasks, " in capsys.readouterr().out
    tried = (train + held_out)[:: 6 if kind == "sandbox" else 1]
    worths = asyncio.run(played(config.env.target, tried, tmp_path, sandbox=kind == "sandbox"))
    assert len(worths) == len(tried)
    assert {worth.idle for worth in worths.values()} == {0.0}
    solved = {round(worth.solution, 1) for worth in worths.values()}
    assert solved == ({1.0, 0.9, 0.8, 0.7} if kind == "multi-turn" else {1.0})


async def played(target, tasks, folder, *, sandbox):
    """What nothing and what the solution is worth, through the loop of a run."""
    backend = await open_sandboxes(sandbox_section("auto"), base=folder) if sandbox else None
    make, reached = load_env_class(target), folder / "reached"
    try:
        return await AttackPlayer(
            make, tasks, tokenizer=ByteTokenizer(), backend=backend, reached=reached
        ).worths()
    finally:
        if backend is not None:
            await backend.close()


def test_the_package_has_tests_that_pass_and_a_run_file(tmp_path, monkeypatch, capsys):
    assert run("env", "new", "my_sums", "--single-turn", "--package", "--out", tmp_path) == 0
    assert f"pip install -e {tmp_path}/my_sums" in capsys.readouterr().out
    folder = tmp_path / "my_sums"
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", folder)
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True)
    assert "2 passed" in done.stdout, done.stdout
    monkeypatch.syspath_prepend(folder)
    config = load_config(folder / "my_sums.yaml")
    assert len(load_tasks(config.eval.datasets["held_out"], base=folder)) == 12
    assert run("env", "check", config.env.target, "--sandbox", "none") == 0
    assert "tasks of my_sums:make_tasks" in capsys.readouterr().out
    written = {str(file.relative_to(tmp_path)) for file in folder.rglob("*.*") if file.is_file()}
    assert set(scaffold("my_sums", "single-turn", package=True)) <= written


def test_what_is_written_passes_preflight_and_trains(tmp_path):
    """One run of two steps, of the very files."""
    assert run("env", "new", "my_prices", "--out", tmp_path) == 0
    written = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    model = write_model(tmp_path / "model") / "config.json"
    positions = {"max_position_embeddings": 4096}
    model.write_text(json.dumps(json.loads(model.read_text()) | positions))
    out, file = tmp_path / "out.txt", tmp_path / "my_prices.yaml"
    small = ("rollout.prompts_per_step=2", "rollout.n_samples_per_prompt=2", "eval.n_samples=1")
    overrides = (f"model.path={model.parent}", f"run.dir={tmp_path}/runs")
    status, text = agentrl(out, "preflight", file, *overrides)
    assert status == 0, text
    assert "the solution: reward 1" in text
    assert "cut off" not in text
    assert "hermes reads back calls of price_of" in " ".join(text.split())
    status, text = agentrl(out, "train", file, "train.steps=2", *small, *overrides)
    assert status == 0, text
    assert "step 2/2" in text
    assert "held_out (12)" in text
    assert {name: (tmp_path / name).read_bytes() for name in written} == written


def test_new_refuses_to_overwrite_and_what_cannot_be(tmp_path, capsys):
    assert run("env", "new", "one", "--out", tmp_path) == 0
    (tmp_path / "one.py").write_text("mine")
    assert run("env", "new", "one", "--out", tmp_path) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "one.py").read_text() == "mine"
    # Another name would still overwrite the tasks of the first, so it is not what to choose.
    assert run("env", "new", "two", "--out", tmp_path) == 2
    assert "held_out.jsonl exists already; choose another --out" in capsys.readouterr().err
    assert not (tmp_path / "two.py").exists()
    for name in ("a-b", "class", "1a", "../up", "random", "agentrl", "numpy", "__main__"):
        assert run("env", "new", name, "--out", tmp_path / "other") == 2
        assert "expected a Python name" in capsys.readouterr().err
    assert run("env", "new", "a", "--tools", "--sandbox", "--out", tmp_path / "other") == 2
    assert "--tools and --sandbox exclude each other" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
