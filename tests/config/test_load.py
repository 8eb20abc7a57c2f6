from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentrl.config import RunConfig, dump_config, load_config, parse_config
from agentrl.config.schema import SINGLE_TURN
from agentrl.errors import ConfigError

MINIMAL: dict[str, Any] = {
    "env": {"target": "my_env.py:MyEnv"},
    "dataset": {"source": "train.jsonl"},
}


def with_keys(*overrides: str) -> RunConfig:
    return parse_config(MINIMAL, overrides)


def test_two_keys_are_enough() -> None:
    config = parse_config(MINIMAL)
    assert config.env.target == "my_env.py:MyEnv"
    assert config.rollout.n_samples_per_prompt == 8


def test_overrides_win_over_the_file_and_are_read_as_yaml(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({**MINIMAL, "train": {"steps": 3, "learning_rate": 1e-5}}))
    config = load_config(
        file,
        [
            "train.learning_rate=2e-6",
            "train.betas=[0.8, 0.9]",
            "env.args.depth=3",
            "env.args.words=[a, b]",
            "dataset.limit=null",
            "log.tensorboard=false",
            "eval.datasets.held out.source=x=y.jsonl",
            "env.args.note=",
        ],
    )
    assert (config.train.steps, config.train.learning_rate) == (3, 2e-6)
    assert config.train.betas == (0.8, 0.9)
    assert config.env.args == {"depth": 3, "words": ["a", "b"], "note": None}
    assert config.log.tensorboard is False
    assert config.eval.datasets["held out"].source == str(Path("x=y.jsonl").absolute())
    assert yaml.safe_load(file.read_text())["train"]["learning_rate"] == 1e-5


@pytest.mark.parametrize("text", ["2e-6", "2.0e-6", "0.000002"])
def test_a_learning_rate_may_be_written_as_people_write_it(text: str, tmp_path: Path) -> None:
    # YAML 1.1 reads 2e-6 as text. Fails if numbers are taken from YAML alone.
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(MINIMAL) + f"train:\n  learning_rate: {text}\n")
    assert load_config(file).train.learning_rate == 2e-6
    assert with_keys(f"train.learning_rate={text}").train.learning_rate == 2e-6


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.lerning_rate=1", r"train\.lerning_rate: unknown key.*did you mean 'learning_rate'"),
        ("trian.steps=1", r"trian: unknown key.*did you mean 'train'"),
        ("sandbox.limits.memory_gb=1", r"did you mean 'memory_mb'"),
        ("eval.datasets.dev.sorce=x", r"eval\.datasets\.dev\.sorce.*did you mean 'source'"),
        ("train.steps=many", r"train\.steps: .*got 'many'"),
        ("train.steps=-1", r"train\.steps: .*greater than or equal to 0.*got -1"),
        ("model.dtype=float16", r"got 'float16'; did you mean 'bfloat16'\? valid: auto, bfloat16"),
        ("algorithm.preset=gpro", r"algorithm\.preset: got 'gpro'; did you mean 'grpo'\?"),
        (
            "algorithm.advantage_estimator=gpro",
            r"  algorithm\.advantage_estimator: got 'gpro'; did",
        ),
        ("algorithm.whiten_advantages=maen", r"whiten_advantages: got 'maen'; did you mean 'mean'"),
        ("train.backend={kind: deepspeed, zero_stage: 4}", r"zero_stage: .*2 or 3 \(got 4\)"),
        ("dataset.columns={id: 3}", r"dataset\.columns\.id: .*valid string \(got 3\)"),
        ("algorithm.kl_controller=window", r"write algorithm\.kl_target: \[0\.05, 0\.2\]"),
        ("algorithm.kl_controller={kind: proportional}", r"write algorithm\.kl_target: 0\.05"),
        ("algorithm.kl_controller=fixed", r"fixed has no effect there; remove it"),
        ("checkpoint.best_by=eval/a/score", r"write checkpoint\.keep_best: \{eval/a/score: 0\}"),
        ("checkpoint.keep_best={a: 1, b: 1}", r"a number of checkpoints, or one metric with it"),
        ("checkpoint.keep_best={eval/a/score: -1}", r"a number of checkpoints, or one metric"),
        ("health.watch=true", r"health\.thresholds, and true has no effect there; remove it"),
        ("health.watch=false", r"write health\.thresholds: false"),
        ("runtime={kind: ray, gpus: {trainers: 1}}", r"gpus is .*\{trainer: 1, engine: 2\}"),
        ("runtime={kind: ray, gpus: -1}", r"gpus is -1; expected a number of at least 0"),
        ("runtime={kind: ray, gpus_per_trainer: 1}", r"write runtime\.gpus\.trainer: 1"),
        ("schedule.stale=drop", r"max_version_lag, and drop has no effect there; remove it"),
        ("schedule.max_version_lag={mask: 1, drop: 1}", r"one of \{drop: N\} and \{mask: N\}"),
        ("schedule.max_version_lag={hide: 1}", r"one of \{drop: N\} and \{mask: N\}"),
        ("algorithm.kl_target=-1", r"kl_target is -1, expected a KL of at least 0"),
        ("algorithm.kl_target=[0.2, 0.05]", r"expected \[low, high\], 0 <= low < high"),
        ("algorithm.kl_target=.inf", r"kl_target is inf; expected a KL in nats a token"),
        ("run.name=../up", r"run\.name"),
        ("reward.env_weight=.nan", r"reward\.env_weight: .*finite number"),
        ("reward.functions={f: {target: 'x:y', weight: .inf}}", r"weight: .*finite number"),
        ("reward.missing_eos_penalty=.inf", r"missing_eos_penalty: .*finite number"),
        ("train.learning_rate=.inf", r"learning_rate: .*finite number"),
        ("train.max_grad_norm=.inf", r"max_grad_norm: .*finite number"),
        ("train.max_minutes=.inf", r"max_minutes: .*finite number"),
        ("train.lora={rank: 1, alpha: .inf}", r"alpha: .*finite number"),
        ("algorithm.kl_coef=.inf", r"kl_coef: .*finite number"),
        ("algorithm.eps_clip_high=.inf", r"eps_clip_high: .*finite number"),
        ("critic.value_clip=.nan", r"value_clip: .*finite number"),
        ("train.betas=[0.9, 1.0]", r"train\.betas\.1"),
        ("train.betas=[0.9]", r"train\.betas"),
        ("train.steps", r"expected 'section\.key=value'"),
        ("=3", r"expected 'section\.key=value'"),
        ("train.steps=[1", r"not a YAML value"),
        ("train.steps.more=1", r"train\.steps"),
        ("env.target.x=1", r"'target' is not a section"),
        ("eval.datasets.dev.split=x", r"eval\.datasets\.dev\.source: missing"),
    ],
)
def test_a_wrong_override_is_explained(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_keys(override)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollout.n_samples_per_prompt=1"], r"at least 2 rollouts per prompt"),
        (["rollout.max_turn_tokens=4000"], r"max_turn_tokens \(4000\) is larger"),
        (["rollout.max_context_tokens=2048"], r"leaves no room for a prompt"),
        (["rollout.temperature=0"], r"greedy groups"),
        (["train.minibatches=65"], r"larger than the 64 rollouts"),
        (["train.micro_batch_tokens=1024"], r"cannot hold one row"),
    ],
)
def test_impossible_combinations_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_keys(*overrides)


def test_what_only_evaluates_needs_no_group() -> None:
    config = with_keys("train.steps=0", "rollout.n_samples_per_prompt=1", "rollout.temperature=0")
    assert config.train.steps == 0


def test_numbers_of_an_environment_are_numbers_and_its_words_words(tmp_path: Path) -> None:
    # Nothing says what type these have, so the text alone must. Fails with plain YAML 1.1, where
    # 1e-3 is a word, and if the resolved file does not quote words that look like numbers.
    file = tmp_path / "run.yaml"
    file.write_text(
        "env: {target: a:B, args: {rate: 1e-3, big: 5E10, word: '1e-3', name: e5, hash: 12e}}\n"
        "dataset: {source: x.jsonl}\nrun: {name: '1e5'}\n"
    )
    config = load_config(file, ["env.args.low=-2e+6", "env.args.quoted='3e1'"])
    assert config.env.args == {
        "rate": 1e-3, "big": 5e10, "word": "1e-3", "name": "e5", "hash": "12e", "low": -2e6,
        "quoted": "3e1",
    }  # fmt: skip
    file.write_text(dump_config(config))
    loaded = load_config(file)
    assert loaded.env.args == config.env.args
    file.write_text(dump_config(loaded))
    assert load_config(file) == loaded


def test_every_mistake_is_reported_at_once_and_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("env: {targt: x}\nmodel: {dtype: int4}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    text = str(caught.value)
    for part in (str(file), "env.targt: unknown key", "model.dtype", "dataset: missing"):
        assert part in text


def test_without_an_environment_something_else_must_pay() -> None:
    rows: dict[str, Any] = {"dataset": {"source": "rows.jsonl"}}
    with pytest.raises(ConfigError, match=r"nothing pays for it; name a reward function"):
        parse_config(rows)
    with pytest.raises(ConfigError, match="nothing pays for it"):
        parse_config({**rows, "env": {"tools": ["my.py:look_up"]}})
    assert parse_config({**rows, "train": {"steps": 0}}).env.target == SINGLE_TURN
    config = parse_config({**rows, "reward": {"functions": {"right": "my.py:right"}}})
    assert config.reward.functions["right"].target == "my.py:right"
    assert config.env.target == SINGLE_TURN


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not YAML"),
        ("- a\n- b\n", "must hold a mapping of sections, got list"),
        ("", "must hold a mapping of sections, got NoneType"),
        ("a: \udcff", "is not YAML"),
    ],
)
def test_a_file_that_is_no_run_file(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=message):
        load_config(file)


def test_a_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "quickstart.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"did you mean '.*quickstart\.yaml'"):
        load_config(tmp_path / "quickstrat.yaml")
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(tmp_path / "no" / "where.yaml")


def test_dump_and_load_are_inverse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a folder `runs` of the current one has a say, too
    config = with_keys(
        "train.learning_rate=3.3e-7",
        "env.args.deep={a: [1, null, 'x: y']}",
        "env.tools=[a:b, c:d]",
        "eval.datasets.dev.source=hf:x/y:z",
        "chat.system_prompt='line\n  two\ttabs: {}'",
    )
    file = tmp_path / "run.yaml"
    file.write_text(dump_config(config))
    loaded = load_config(file)
    assert loaded.env.args == config.env.args
    file.write_text(dump_config(loaded))
    assert load_config(file) == loaded


@given(
    prompt=st.text(st.characters(codec="utf-8"), max_size=20),
    rate=st.floats(1e-12, 1.0),
    seed=st.integers(0, 2**63),
)
def test_any_text_and_number_survives_the_resolved_file(
    prompt: str, rate: float, seed: int
) -> None:
    data = {
        **MINIMAL,
        "chat": {"system_prompt": prompt},
        "train": {"learning_rate": rate},
        "run": {"seed": seed},
    }
    config = parse_config(data)
    assert parse_config(yaml.safe_load(dump_config(config))) == config


def test_a_config_cannot_be_changed() -> None:
    config = parse_config(MINIMAL)
    with pytest.raises(ValidationError):
        config.train.steps = 5  # type: ignore[misc]


def test_parsing_leaves_its_input_alone() -> None:
    data = {**MINIMAL, "train": {"steps": 1}}
    parse_config(data, ["train.steps=2", "env.args.x=1"])
    assert data["train"] == {"steps": 1}
    assert "args" not in MINIMAL["env"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], ("dr_grpo", "seq-mean-token-sum-norm", 2048)),
        (["algorithm.preset=grpo"], ("group_norm", "seq-mean-token-mean", 2048)),
        (["algorithm.loss_agg_mode=token-mean"], ("dr_grpo", "token-mean", 2048)),
        (["algorithm.horizon=7"], ("dr_grpo", "seq-mean-token-sum-norm", 7)),
    ],
)
def test_the_algorithm_is_resolved_from_its_preset(
    overrides: list[str], expected: tuple[str, str, int]
) -> None:
    section = with_keys(*overrides).resolved_algorithm()
    assert (section.advantage_estimator, section.loss_agg_mode, section.horizon) == expected


def test_sandbox_limits_have_the_keys_of_the_contract() -> None:
    # A knob without a reader, or a limit without a knob, is a mistake on either side.
    from agentrl.config.sandboxes import ContainerLimits
    from agentrl.sandbox import SandboxLimits

    units = {"memory_mb": "memory_bytes", "disk_mb": "disk_bytes"}
    named = {units.get(name, name) for name in ContainerLimits.model_fields}
    assert named <= {field.name for field in dataclasses.fields(SandboxLimits)}


@pytest.mark.parametrize("value", ["x", "0", "-1", "1.5", "true"])
def test_a_width_of_a_server_that_is_no_number_of_devices_is_named(value: str) -> None:
    """Fails if it is only found where devices are counted, as a traceback."""
    with pytest.raises(ConfigError, match=r"tensor.parallel.size is .*a number of devices"):
        with_keys("serving.engine=vllm", f"serving.args.tensor-parallel-size={value}")
    assert with_keys("serving.engine=vllm", "serving.args.tensor_parallel_size=2")


def test_a_key_inside_of_a_section_that_is_written_as_a_plain_value() -> None:
    data = {"env": {"target": "a:B"}, "dataset": {"source": "x"}, "train": {"lora": 8}}
    found = parse_config(data, ["train.lora.alpha=4", "serving.max_batch_size=3"])
    assert found.train.lora is not None
    assert (found.train.lora.rank, found.train.lora.alpha) == (8, 4.0)
    assert data["train"] == {"lora": 8}
