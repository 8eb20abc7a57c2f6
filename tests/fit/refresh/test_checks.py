"""Settings that cannot work are refused before anything is loaded, also by a dry run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.config import RunConfig, load_config, parse_config
from agentrl.config.plan import plan_run
from agentrl.errors import ConfigError
from agentrl.fit.refresh.checks import check_refresh
from agentrl.fit.refresh.fit_child import fit_config
from agentrl.fit.refresh.jobs import RefreshJob
from agentrl.fit.refresh.origin import OldPairs, fit_of, old_pairs
from agentrl.runtime.drivers.choose import is_synchronous
from tests.fit.fit_project import pairs, write_fit, write_rows
from tests.fit.refresh.refresh_runs import refresh_section, write_refresh_project
from tests.runtime.reward_checkpoints import write_reward_model
from tests.runtime.tiny_project import agentrl


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a reward model, and pairs beside it."""
    made = tmp_path_factory.mktemp("checks")
    write_refresh_project(made)
    write_rows(made / "old.jsonl", pairs(4))
    return made


def refused_or_said(config: RunConfig, base: Path) -> str | None:
    """What the check answers, under the schedule of the run."""
    plan = plan_run(config, base).schedule
    return check_refresh(plan, synchronous=is_synchronous(plan.schedule))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"refresh": refresh_section(every_steps=6)}, r"every_steps is 6, but train\.steps is 6"),
        ({"schedule": {"oversample": 1.5}}, "under way between steps.*remove schedule.oversample"),
        (
            {"schedule": {"staleness_threshold": 1.0, "partial_rollout": True}},
            "under way between steps",
        ),
        ({"refresh": refresh_section(labeller="nowhere:f")}, r"refresh\.labeller 'nowhere:f'"),
        (
            {"refresh": refresh_section(labeller={"target": "human", "args": {"a": 1}})},
            "'human' takes none",
        ),
        (
            {"refresh": refresh_section(old_pairs=None)},
            r"old_pairs is not set, and '\S+/rm' is no run directory.*`none` to train on new pairs",
        ),
        ({"refresh": refresh_section(old_pairs="gone.jsonl")}, r"old_pairs: .*gone\.jsonl"),
    ],
)
def test_what_cannot_work_is_refused(folder: Path, changes: dict[str, Any], said: str) -> None:
    config = load_config(write_refresh_project(folder, **changes))
    with pytest.raises(ConfigError, match=rf"(?s){said}"):
        refused_or_said(config, folder)


def test_an_ensemble_of_one_run_is_refused(folder: Path) -> None:
    (folder / "many" / "members" / "0").mkdir(parents=True)
    config = load_config(write_refresh_project(folder))
    item = config.reward.models["rm"].model_copy(update={"path": ("many",)})
    reward = config.reward.model_copy(update={"models": {"rm": item}})
    config = config.model_copy(update={"reward": reward})
    with pytest.raises(ConfigError, match=r"an ensemble of 1, and only a single.*many/members/0"):
        refused_or_said(config, folder)


def test_what_works_is_said_in_a_line(folder: Path) -> None:
    config = load_config(
        write_refresh_project(folder, refresh=refresh_section(old_pairs="old.jsonl"))
    )
    assert refused_or_said(config, folder) == (
        f"reward.refresh: rm after every 2 steps, labelled by {folder}/labels.py:first_id, old "
        f"pairs of {folder}/old.jsonl"
    )
    for off in ({"refresh": None}, {"refresh": {"every_steps": 0}}, {"train__steps": 0}):
        assert refused_or_said(load_config(write_refresh_project(folder, **off)), folder) is None


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ({"refresh": {"every_steps": 1, "labeller": "human"}}, "models is empty"),
        (
            {"models": {"a": "x", "b": "y"}, "refresh": {"every_steps": 1, "labeller": "human"}},
            "refresh.model is not set, but models has 2: a, b",
        ),
        (
            {"models": {"one": "x"}, "refresh": {"model": "onee"}},
            r"refresh\.model: got 'onee'; did you mean 'one'",
        ),
        (
            {"models": {"a": ["x", "y"]}, "refresh": {"every_steps": 1, "labeller": "human"}},
            "an ensemble of 2, and only a single model can be refreshed",
        ),
        ({"models": {"a": "x"}, "refresh": {"every_steps": 1}}, "labeller is not set; expected"),
        ({"models": {"a": "x"}, "refresh": {"labeller": {"name": "f"}}}, "a mapping with target"),
        ({"models": {"a": "x"}, "refresh": {"pairs": 1}}, "greater than or equal to 2"),
        ({"models": {"a": "x"}, "refresh": {"guard": -0.1}}, "greater than or equal to 0"),
        ({"models": {"a": "x"}, "refresh": {"held_out": 1.0}}, "less than 1"),
    ],
)
def test_sections_that_mean_nothing_are_refused(reward: dict[str, Any], said: str) -> None:
    data = {"env": {"target": "m:E"}, "dataset": {"source": "x.jsonl"}, "reward": reward}
    with pytest.raises(ConfigError, match=said):
        parse_config(data)


def test_a_dry_run_refuses_and_shows(folder: Path) -> None:
    path = write_refresh_project(folder)
    words = ("train", path, "--dry-run", "reward.refresh.labeller=nowhere:f")
    status, text = agentrl(folder / "a.log", *words)
    said = " ".join(text.split())
    assert status == 2, text
    assert "fail reward models" in said
    assert "nowhere" in said
    assert f"labelled by {folder}/labels.py:first_id, no old pairs" in (
        refused_or_said(load_config(path), folder) or ""
    )


def test_a_fit_that_made_the_model_gives_its_settings_and_its_pairs(tmp_path: Path) -> None:
    """Fails if margins, schedules or epochs of that fit are kept, or its loss and chat are not."""
    status, text = agentrl(
        tmp_path / "fit.log",
        "fit",
        write_fit(
            tmp_path, "rm", train__learning_rate=1e-2, train__schedule="linear",
            objective__margin_scale=0.0, objective__center_coef=0.25, chat={"system_prompt": "Be."},
            data__limit=5, data__examples_per_step=5, eval__datasets={},
        ),
    )  # fmt: skip
    assert status == 0, text
    made = fit_of("runs/fit", tmp_path)
    assert made is not None
    config, base = made
    assert base == tmp_path
    assert fit_of("runs/fit/checkpoints/step-1", tmp_path) is not None
    found = old_pairs(load_section(), "runs/fit", base=tmp_path)
    assert found is not None
    assert found == OldPairs(source=config.data.source, base=str(tmp_path), limit=5)
    assert len(found.load()) == 5
    job = RefreshJob(
        folder=str(tmp_path / "step"), step=2, current="now", origin="runs/fit", base=str(tmp_path),
        models=str(tmp_path / "models"), version=3, old=found, earlier=(), held_out=0.2, seed=7,
        steps=9, learning_rate=1e-4, device="cpu", longest=9000, needs_scale=True,
    )  # fmt: skip
    new = fit_config(job, config, outputs=1, pairs=12)
    assert (new.run.name, new.run.seed, new.model.path) == ("v3", 7, "now")
    assert (new.train.steps, new.train.learning_rate, new.train.schedule) == (9, 1e-4, "constant")
    assert (new.objective, new.chat) == (config.objective, config.chat)
    assert new.train.micro_batch_tokens == 18000
    assert new.data.examples_per_step == 5
    assert new.data.epochs * 12 // 5 >= 9
    assert new.data.limit is None
    plain = fit_config(job, None, outputs=2, pairs=12)
    assert plain.objective.kind == "rm"
    assert plain.objective.loss == "purm"
    assert plain.data.examples_per_step == 12
    write_reward_model(tmp_path / "rm", tmp_path / "model")
    assert fit_of("rm", tmp_path) is None
    assert fit_of("org/name", tmp_path) is None
    (tmp_path / "config.yaml").write_text("env: {target: 'a:B'}\nrollout: {}\n")
    with pytest.raises(ConfigError, match="is a run that is no fit"):
        fit_of(".", tmp_path)


def load_section():
    data = {
        "env": {"target": "m:E"}, "dataset": {"source": "x.jsonl"},
        "reward": {"models": {"a": "x"}, "refresh": {"every_steps": 1, "labeller": "human"}},
    }  # fmt: skip
    section = parse_config(data).reward.refresh
    assert section is not None
    return section
