"""Run files and run directories of older versions."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.config import dump_config, leaves, load_config, parse_config
from agentrl.config.keys import put
from agentrl.config.load import FIT_FILE, load_stored_config
from agentrl.config.renamed import RENAMED, old_keys
from agentrl.config.stored import translate
from agentrl.errors import ConfigError
from agentrl.runtime.assembly.layout import engine_width

OLD = Path(__file__).parent / "old"
"""`agentrl config show` of an older version, and every key that some versions had."""
KEY_FILES = ("keys.txt", "keys_of_222.txt", "keys_of_208.txt")
"""Of the oldest version that is read, and of later ones with 222 and 208 keys."""
FILES = sorted(OLD.glob("*.yaml"))
LEFT_TO_THE_PRESET = {"algorithm.old_log_probs"}
"""Keys whose old default every preset but one still takes, and which are unset today."""
ANOTHER_TODAY = {"chat.tool_parser": "none"}
"""Keys whose default is another today: a run that has stored the old one goes on with it."""
LEFT_OUT = (
    "dataset.selection.", "reward.refresh.", "algorithm.distill.", "critic.lora.", "train.lora.",
)  # fmt: skip
"""Optional sections, which a run that left them out has stored as none."""
MINIMAL: dict[str, Any] = {"env": {"target": "a:B"}, "dataset": {"source": "x.jsonl"}}


def old_defaults(*files: str) -> dict[str, Any]:
    """Keys of some older version, or of all of `KEY_FILES`, with what their defaults were."""
    files = files or KEY_FILES
    lines = [line for file in files for line in (OLD / file).read_text().splitlines()]
    return {key: yaml.safe_load(text) for key, _, text in (line.partition(" = ") for line in lines)}


def test_every_old_key_is_one_of_today_or_has_a_successor_or_is_gone() -> None:
    today = {key.name for key in leaves()}
    moved = {renamed.old.replace("*", "NAME"): renamed for renamed in RENAMED}
    old = old_defaults()
    changed = {"runtime", "train.backend", "reward.dynamic_filtering"}
    changed |= {"algorithm.kl_controller.kind", "algorithm.kl_controller.target"}
    changed |= {"dataset.selection.by"}
    for key in old:
        assert (key in today) != (key in moved) or key in changed, key
    gone_from_a_section = {"eval.datasets.NAME.difficulty.weight_by"}
    inside_a_key = {"serving.args.tensor_parallel_size", "sandbox.pod.namespace"}
    inside_a_key |= {"runtime.gpus.trainer", "runtime.gpus.engine"}
    for key, renamed in moved.items():
        assert key in old, key
        new = renamed.new.replace("*", "NAME")
        assert not new or new in today | gone_from_a_section | inside_a_key, new
        assert renamed.new or renamed.reason


@pytest.mark.parametrize("keys", KEY_FILES)
def test_every_old_default_is_translated_to_the_default_of_today(
    keys: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails too if a removed key that had its default is warned of."""
    known = {key.name: key for key in leaves()}
    tree: dict[str, Any] = {}
    for key, value in old_defaults(keys).items():
        if "NAME" in key or value == "(required)" or key in LEFT_TO_THE_PRESET:
            continue
        optional = key in known and (known[key].optional or known[key].kinds)
        if keys != "keys.txt" and (optional or key.startswith(LEFT_OUT)):
            continue
        put(tree, key.split("."), value)
    for section, values in MINIMAL.items():
        tree[section] = {**tree.get(section, {}), **values}
    stored = [f"{key}={value}" for key, value in ANOTHER_TODAY.items()]
    with caplog.at_level(logging.WARNING):
        assert parse_config(translate(tree)) == parse_config(MINIMAL, stored)
    assert caplog.text == ""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_stored_config_is_read_and_says_the_same(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a folder `runs` of the current one has a say, too
    config = load_stored_config(file)
    again = tmp_path / "config.yaml"
    again.write_text(dump_config(config))
    assert load_stored_config(again) == config
    whole = load_stored_config(file, tmp_path)
    again.write_text(dump_config(whole))
    assert load_config(again) == whole
    with pytest.raises(ConfigError, match="is written for an older agentrl"):
        load_config(file)


def test_values_arrive_where_they_are_read() -> None:
    config = load_stored_config(OLD / "deepspeed_ray.yaml")
    assert config.train.backend.model_dump() == {
        "kind": "deepspeed", "zero_stage": 3, "offload": True,
    }  # fmt: skip
    assert (config.ray.trainer_ranks, config.ray.address) == (2, "auto")
    assert config.serving.engine == "vllm"
    assert config.serving.replicas == 2
    assert config.sync.model_dump() == {
        "backend": "collective", "dense_every": 4, "directory": None, "timeout_s": 120.0,
    }  # fmt: skip
    assert config.algorithm.kl_target == (0.05, 0.2)
    assert config.algorithm.reference_update is not None
    assert config.algorithm.reference_update.model_dump() == {"every_steps": 5, "polyak": 0.5}
    assert config.sandbox.model_dump()["limits"]["cpus"] == 2

    config = load_stored_config(OLD / "external_lora.yaml")
    assert config.serving.model_dump() == {
        "engine": "external", "urls": ("http://a:8000", "http://b:8000"), 
        "args": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
        "max_batch_size": 64, "start_timeout_s": 600.0,
        "outage_limit_s": 900.0,
    }  # fmt: skip
    assert config.train.lora is not None
    assert (config.train.lora.rank, config.train.lora.sync) == (8, "merged")
    assert config.schedule.staleness_threshold == 1.0
    assert config.sync.model_dump() == {
        "backend": "disk", "dense_every": 1, "directory": "shared", "timeout_s": 120.0,
    }  # fmt: skip

    config = load_stored_config(OLD / "filters.yaml")
    assert config.reward.overlong is not None
    assert config.reward.overlong.model_dump() == {
        "buffer_len": 16, "penalty_factor": 0.5, 
        "max_sampled_tokens": config.rollout.max_response_tokens,
    }  # fmt: skip
    assert config.reward.dynamic_filtering is not None
    assert config.reward.dynamic_filtering.model_dump() == {"keep": (0.0, 1.0), "rounds": 5}
    assert config.dataset.difficulty is not None
    assert config.dataset.difficulty.model_dump() == {"source": "profile", "keep": (0.1, 0.9)}
    assert config.dataset.selection == "variance"
    held = config.eval.datasets["new_tasks"].difficulty
    assert held is not None
    assert held.model_dump() == {"source": "column:rate", "keep": (0.0, 0.5)}
    assert config.algorithm.whiten_advantages == "mean"
    assert config.train.backend.kind == "fsdp2"

    config = load_stored_config(OLD / "ppo.yaml")
    assert (config.algorithm.kl_target, config.algorithm.kl_horizon) == (0.02, 500)
    assert config.algorithm.resolved(horizon=1).advantage_estimator == "gae"


def test_a_run_is_told_what_has_no_effect_any_more(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load_stored_config(OLD / "quickstart.yaml")
        assert caplog.text == ""
        load_stored_config(OLD / "deepspeed_ray.yaml")
    assert "serving.repin_moves was 0 and has no effect" in caplog.text
    assert "sync.bucket_mb was 16 and has no effect" in caplog.text


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("ray.trainer_ranks=2", r"now runtime\.trainer_ranks; write runtime\.trainer_ranks: 2"),
        (
            "train.zero_stage=3",
            r"now train\.backend\.zero_stage; write .*zero_stage: 3",
        ),
        ("dataset.pass_rate=[0.1, 0.9]", r"write dataset\.difficulty\.keep: \[0\.1, 0\.9\]"),
        ("eval.datasets.a b.weight_by=none", r"eval\.datasets\.a b\.weight_by: .*; remove it"),
        ("reward.filter_rounds=3", r"write reward\.dynamic_filtering\.rounds: 3"),
        ("algorithm.no_std_norm=true", r"algorithm\.whiten_advantages"),
        ("schedule.one_step_off=true", r"write schedule\.staleness_threshold: 1\.0"),
        ("serving.repin_moves=0", r"serving\.repin_moves: this key is gone: .*; remove it"),
    ],
)
def test_an_old_key_is_answered_with_the_new_one(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(MINIMAL, [override])


def test_every_old_key_of_a_file_is_named_at_once() -> None:
    data = yaml.safe_load((OLD / "quickstart.yaml").read_text())
    said = "\n".join(old_keys(data))
    known = {key.replace("NAME", "held_out") for key in old_defaults("keys.txt")}
    for renamed in RENAMED:
        name = renamed.old.replace("*", "held_out")
        assert (name in known) == (f"{name}:" in said), name


def test_what_is_no_key_of_any_version_stays_for_the_reader() -> None:
    data = {**MINIMAL, "ray": {"trainer_rank": 2}, "serving": "odd", "train": {"lora": 3}}
    assert translate(data) == data
    with pytest.raises(ConfigError, match=r"ray: unknown key"):
        parse_config(translate(data))


def test_a_clip_of_a_stored_run_acts_where_it_acted() -> None:
    """Fails if a resumed run, or a replay of it, is shaped in another order than it was."""
    bounds = [-10.0, 10.0]
    old = {**MINIMAL, "reward": {"clip": bounds, "normalize": True}}
    read = parse_config(translate(old)).reward
    assert (read.clip_raw, read.clip) == ((-10.0, 10.0), None)
    old["reward"]["normalize"] = False  # then the two are the same
    assert parse_config(translate(old)).reward.clip == (-10.0, 10.0)
    new = {**MINIMAL, "reward": {"clip": bounds, "normalize": True, "clip_raw": None}}
    assert parse_config(translate(new)).reward.clip == (-10.0, 10.0)


def test_a_stored_run_with_removed_keys_says_the_same_or_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Fails if a removed key makes a run unreadable, or another value of it goes unnoticed."""
    stored = MINIMAL | {
        "algorithm": {"std_ddof": 0, "std_eps": 1e-6},
        "reward": {
            "overlong": {"buffer_len": 4, "length_unit": "sampled", "max_sampled_tokens": 40}
        },
        "serving": {"engine": "external", "urls": ["http://a:1"], "devices_per_server": 4},
    }
    with caplog.at_level(logging.WARNING):
        config = parse_config(translate(stored))
    assert "algorithm.std_ddof was 0 and has no effect now" in caplog.text
    assert caplog.text.count("has no effect now") == 1
    assert config.reward.overlong is not None
    assert config.reward.overlong.length_unit == "sampled"
    assert config.reward.overlong.max_sampled_tokens == 40
    assert config.serving.engine == "external"
    assert engine_width(config.serving) == 4


def test_a_stored_fit_with_a_removed_key_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("data: {source: x.jsonl}\ntrain: {schedule_unit: optimizer_step, steps: 7}\n")
    assert FIT_FILE.load_stored(file).train.steps == 7
    with pytest.raises(ConfigError, match=r"train\.schedule_unit: this key is gone: .*remove it"):
        FIT_FILE.load(file)
