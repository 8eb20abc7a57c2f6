"""Where paths of files, overrides and the default folder of runs start."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from agentrl.config import load_config
from agentrl.config.fit import FitConfig
from agentrl.config.load import FIT_FILE, RUN_FILE
from agentrl.config.paths import PathStart, absolute_paths
from agentrl.config.schema import RunConfig
from agentrl.errors import ConfigError

RUN = {"env": {"target": "env.py:Env"}, "dataset": {"source": "rows.jsonl"}}


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folder of a file, and the current one."""
    own, here = tmp_path / "configs", tmp_path / "work"
    own.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    return own, here


def write(folder: Path, document: object) -> Path:
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def test_paths_of_a_file_start_at_its_folder(places: tuple[Path, Path]) -> None:
    own, _ = places
    (own / "model").mkdir()
    document = {
        **RUN,
        "run": {"dir": "../runs"},
        "model": {"path": "model"},
        "critic": {"path": "./critic"},
        "sandbox": {"backend": "box.py:Box", "read_only": ["data", "/usr"]},
        "reward": {
            "models": {"plain": "../runs/rm", "several": {"path": ["./a", "owner/b"]}},
            "functions": {"f": {"target": "score.py:f"}, "g": {"target": "package.module:g"}},
        },
        "algorithm": {"policy_loss": "loss.py:loss", "advantage_estimator": "gae"},
        "eval": {"datasets": {"e": {"source": "hf:owner/name"}}},
    }
    document["dataset"] = {
        "source": "make.py:tasks",
        "difficulty": {"source": "old", "keep": [0, 1]},
    }
    document["env"] = {"target": "env.py:Env", "tools": ["t.py:T", {"target": "t.py:U"}, "m:V"]}
    config = load_config(write(own, document))
    assert config.run.dir == str(own.parent / "runs")
    assert config.model.path == str(own / "model")
    assert config.critic.path == str(own / "critic")
    assert config.sandbox.backend == f"{own}/box.py:Box"
    assert config.sandbox.read_only == (f"{own}/data", "/usr")
    models = config.reward.models
    assert models["plain"].path == (str(own.parent / "runs" / "rm"),)
    assert models["several"].path == (f"{own}/a", "owner/b")
    assert config.reward.functions["f"].target == f"{own}/score.py:f"
    assert config.reward.functions["g"].target == "package.module:g"
    assert config.algorithm.policy_loss == f"{own}/loss.py:loss"
    assert config.algorithm.advantage_estimator == "gae"
    assert config.eval.datasets["e"].source == "hf:owner/name"
    assert config.dataset.source == f"{own}/make.py:tasks"
    assert config.dataset.difficulty is not None
    assert config.dataset.difficulty.source == f"{own}/old"
    first, second, third = config.env.tools
    assert (first, third) == (f"{own}/t.py:T", "m:V")
    assert not isinstance(second, str)
    assert second.target == f"{own}/t.py:U"


def test_overrides_and_the_default_of_runs_start_at_the_current_folder(
    places: tuple[Path, Path],
) -> None:
    own, here = places
    (here / "model").mkdir()
    file = write(own, RUN)
    overrides = ["model.path=model", "dataset.source=here.jsonl", "reward.models.rm=../rm"]
    config = load_config(file, overrides)
    assert config.run.dir == str(here / "runs")
    assert config.model.path == str(here / "model")
    assert config.dataset.source == str(here / "here.jsonl")
    assert config.reward.models["rm"].path == (str(here.parent / "rm"),)
    assert config.env.target == f"{own}/env.py:Env"
    assert load_config(file, ["run.dir=out"]).run.dir == str(here / "out")
    whole = load_config(file, ["dataset={source: other.jsonl, limit: 3}"])
    assert whole.dataset.source == str(here / "other.jsonl")


@pytest.mark.parametrize("text", ["quickstart", "gpt2", "owner/name"])
def test_a_name_of_the_hub_stays_one(places: tuple[Path, Path], text: str) -> None:
    own, _ = places
    assert load_config(write(own, {**RUN, "model": {"path": text}})).model.path == text


@pytest.mark.parametrize("text", ["./gone", "../gone", "/gone/x", "~/gone"])
def test_a_path_that_cannot_be_a_name_is_one(places: tuple[Path, Path], text: str) -> None:
    own, _ = places
    path = load_config(write(own, {**RUN, "model": {"path": text}})).model.path
    assert Path(path).is_absolute()
    assert ".." not in Path(path).parts


@pytest.mark.parametrize(
    ("key", "document"),
    [
        ("model.path", {"model": {"path": "runs/sft"}}),
        ("critic.path", {"critic": {"path": "runs/sft"}}),
        ("run.dir", {"run": {"dir": "runs/sft"}}),
        ("reward.models.rm", {"reward": {"models": {"rm": "runs/sft"}}}),
    ],
)
def test_a_path_of_the_old_way_is_told_both_readings(
    places: tuple[Path, Path], key: str, document: dict[str, object]
) -> None:
    own, here = places
    (here / "runs" / "sft").mkdir(parents=True)
    file = write(own, {**RUN, **document})
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    message = str(caught.value)
    assert message.startswith(f"{key} 'runs/sft'")
    assert str(own / "runs" / "sft") in message
    assert str(here / "runs" / "sft") in message
    assert "'../work/runs/sft'" in message
    assert load_config(file, [f"{key}=runs/sft"])


def test_a_fit_file_follows_the_same_rule(places: tuple[Path, Path]) -> None:
    own, here = places
    document = {
        "data": {"source": "run:../runs/a"},
        "objective": {"kind": "dpo", "reference": "./first"},
    }
    config = FIT_FILE.load(write(own, document), ["eval.datasets.e.source=pairs.jsonl"])
    assert config.data.source == f"run:{own.parent}/runs/a"
    assert config.objective.kind == "dpo"
    assert config.objective.reference == f"{own}/first"
    assert config.eval.datasets["e"].source == str(here / "pairs.jsonl")
    kept = absolute_paths({"objective": {"reference": "model"}}, FitConfig, PathStart(base=own))
    assert kept == {"objective": {"reference": "model"}}


def test_a_stored_config_of_an_older_version_reads_as_it_did(places: tuple[Path, Path]) -> None:
    own, here = places
    (here / "runs" / "sft").mkdir(parents=True)
    (own / "runs" / "sft").mkdir(parents=True)
    document = {**RUN, "run": {"dir": "runs"}, "model": {"path": "runs/sft"}}
    config = RUN_FILE.load_stored(write(here, document), own)
    assert config.run.dir == str(here / "runs")
    assert config.model.path == str(here / "runs" / "sft")
    assert config.dataset.source == str(own / "rows.jsonl")


def test_absolute_settings_stay_what_they_are(places: tuple[Path, Path]) -> None:
    own, here = places
    config = load_config(write(own, {**RUN, "model": {"path": "owner/name"}}))
    assert RUN_FILE.whole(config, here) == config
    assert absolute_paths(config.model_dump(), RunConfig, PathStart(base=here))
