from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from agentrl.cli.config import app
from agentrl.config import leaves, load_config
from agentrl.config.fit import FitConfig
from agentrl.config.keys import REQUIRED
from agentrl.errors import ConfigError

RUN = "env: {target: my_env.py:MyEnv}\ndataset: {source: train.jsonl}\n"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_show_prints_a_run_file_with_everything_in_it(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(RUN)
    text = run("show", str(file), "train.steps=7", "env.args.x=1")
    (tmp_path / "resolved.yaml").write_text(text)
    assert load_config(tmp_path / "resolved.yaml") == load_config(
        file, ["train.steps=7", "env.args.x=1"]
    )
    assert yaml.safe_load(text)["train"]["steps"] == 7


def test_show_refuses_with_the_loaders_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        CliRunner().invoke(app, ["show", str(tmp_path / "no.yaml")], catch_exceptions=False)


def test_schema_lists_every_key_once_with_its_default_and_meaning() -> None:
    text = run("schema")
    for key in leaves():
        assert text.count(f"\n{key.name} = ") == 1
        assert key.meaning in text
    assert "\nenv.target = agentrl_envs.single_turn:SingleTurn\n" in text
    assert "\neval.datasets.NAME.source = (required)\n" in text
    assert "\ntrain.betas = [0.9, 0.95]\n" in text


def test_a_fit_file_has_a_schema_and_a_resolved_form_of_its_own(tmp_path: Path) -> None:
    text = run("schema", "--fit")
    for key in leaves(FitConfig):
        assert key.meaning in text
    assert "\ndata.source = (required)\n" in text
    assert json.loads(run("schema", "--fit", "--json"))["required"] == ["data"]
    file = tmp_path / "fit.yaml"
    file.write_text("data: {source: pairs.jsonl}\nobjective: dpo\n")
    shown = yaml.safe_load(run("show", str(file), "objective.beta=0.3"))
    assert shown["objective"]["beta"] == 0.3
    with pytest.raises(ConfigError, match=r"file of `agentrl fit`"):
        load_config(file)


def test_schema_of_a_section_has_the_keys_of_that_section_alone() -> None:
    """Fails if a section of one kind, of a name of the user's choice, or as JSON is not found."""
    for section, wanted in {
        "critic": {"critic.path", "critic.value_clip"},
        "train.lora": {"train.lora.rank"},
        "reward.models": {"reward.models.NAME.path"},
        "eval.datasets.held_out": {"eval.datasets.NAME.source"},
        "train.steps": {"train.steps"},
    }.items():
        listed = set(re.findall(r"^(\S+) = ", run("schema", section), re.MULTILINE))
        assert wanted <= listed
        assert all(name.startswith(section.replace("held_out", "NAME")) for name in listed)
    assert "objective.beta" in run("schema", "objective", "--fit")
    assert "max_grad_norm" in json.loads(run("schema", "train", "--json"))["properties"]
    kinds = json.loads(run("schema", "serving", "--json"))["oneOf"]
    assert {kind["title"] for kind in kinds} >= {"EmbeddedServing", "VllmServing"}
    nearest = {"trian": "train", "train.learning_rat": "train.learning_rate"}
    for wrong, near in (nearest | {"reward.modles": "reward.models"}).items():
        with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
            CliRunner().invoke(app, ["schema", wrong], catch_exceptions=False)


def test_schema_as_json_is_a_json_schema() -> None:
    schema = json.loads(run("schema", "--json"))
    assert schema["required"] == ["dataset"]
    train = schema["$defs"]["TrainSection"]["properties"]
    assert train["learning_rate"]["description"] == "Peak learning rate."


def test_defaults_are_written_as_a_run_file_would(tmp_path: Path) -> None:
    # Every default printed can be pasted into a file, and changes only what the file has set.
    file = tmp_path / "run.yaml"
    file.write_text(RUN)
    overrides = [
        f"{key.name}={key.default}"
        for key in leaves()
        if "NAME" not in key.name and not key.kinds and not key.optional and key.default != REQUIRED
        if key.name != "env.target"
    ]
    assert len(overrides) > 90
    assert load_config(file, overrides) == load_config(file)


def test_keys_of_one_kind_stand_under_it() -> None:
    text = run("schema")
    assert "\n# with train.backend.kind: deepspeed\ntrain.backend.zero_stage = 2\n" in text
    assert "\n# train.lora is left out by default\ntrain.lora.rank = (required)\n" in text


def test_show_prints_the_keys_of_the_kind_alone(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(RUN)
    plain = yaml.safe_load(run("show", str(file)))
    assert plain["runtime"] == {
        "kind": "local", "worker_processes": 0, "colocated": "auto", "offload": None,
    }  # fmt: skip
    assert plain["train"]["lora"] is None
    ray = yaml.safe_load(run("show", str(file), "runtime=ray", "runtime.trainer_ranks=3"))
    assert ray["runtime"]["trainer_ranks"] == 3
