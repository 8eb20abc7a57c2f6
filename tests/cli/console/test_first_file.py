"""`agentrl train --data --reward`: the run file that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.cli.console.first_file import write_first_file
from agentrl.cli.train import _first_file
from agentrl.config import load_config
from agentrl.config.schema import SINGLE_TURN
from agentrl.errors import ConfigError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("data", "source", "name"),
    [
        ("rows.jsonl", "{here}/rows.jsonl", "rows"),
        ("b c/my #1 rows.parquet", "{here}/b c/my #1 rows.parquet", "my-1-rows"),
        ("openai/gsm8k:main", "hf:openai/gsm8k:main", "gsm8k"),
        ("hf:openai/gsm8k", "hf:openai/gsm8k", "gsm8k"),
        ("my_tasks.py:tasks", "{here}/my_tasks.py:tasks", "my_tasks"),
        ("data/rows.csv.gz", "{here}/data/rows.csv.gz", "rows"),
    ],
)
def test_it_is_a_run_file_of_one_turn(here: Path, data: str, source: str, name: str) -> None:
    path = write_first_file(data, ["my.py:right", "m.rewards:brief"], "a/b: c")
    config = load_config(path)
    assert (path.name, config.run.name) == (f"{name}.yaml", name)
    assert (config.env.target, config.model.path) == (SINGLE_TURN, "a/b: c")
    assert config.dataset.source == source.format(here=here)
    assert {k: f.target for k, f in config.reward.functions.items()} == {
        "right": f"{here}/my.py:right",
        "brief": "m.rewards:brief",
    }
    text = path.read_text()
    assert write_first_file(data, ["my.py:right", "m.rewards:brief"], "a/b: c") == path
    path.write_text(text + "# mine\n")
    with pytest.raises(ConfigError, match=r"is there already and says something else; train it"):
        write_first_file(data, ["my.py:right", "m.rewards:brief"], "a/b: c")
    assert path.read_text() == text + "# mine\n"


@pytest.mark.parametrize(
    ("config", "data", "reward", "message"),
    [
        (None, "rows.jsonl", None, r"--reward is missing; expected both"),
        (None, None, ["a.py:b"], r"--data is missing; expected both"),
        ("run.yaml", "rows.jsonl", ["a.py:b"], r"run\.yaml is one; give either"),
        (None, "rows.jsonl", ["a.py"], r"'a\.py', which names no function; expected FILE"),
        (None, "rows.jsonl", ["a.py:"], r"names no function"),
        (None, "rows.jsonl", ["a.py:b", "c.py:b"], r"two functions called 'b'"),
    ],
)
def test_what_is_asked_by_halves_is_refused(
    here: Path, config: str | None, data: str | None, reward: list[str] | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        _first_file(config, None, data, reward, None)
    assert not list(here.iterdir())


def test_overrides_may_come_first_and_are_said(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, overrides = _first_file("train.steps=2", ["run.seed=1"], "r.jsonl", ["a.py:b"], None)
    assert (path.name, overrides) == ("r.yaml", ["train.steps=2", "run.seed=1"])
    assert capsys.readouterr().out.endswith("agentrl train r.yaml train.steps=2 run.seed=1\n")
