"""Tasks chosen by pass rate stay chosen, although the run that measured them goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from agentrl.config import RunConfig, parse_config
from agentrl.config.plan import plan_run
from agentrl.config.schema import DatasetSection
from agentrl.errors import DataError, RunError
from agentrl.runtime.assembly.parts import Chosen, TaskSets, load_task_sets
from agentrl.runtime.assembly.task_choice import dataset_sections, read_chosen, write_chosen
from agentrl.runtime.launch import open_run, train
from agentrl.runtime.progress import Progress
from agentrl.types.finding import Status


def write_rows(folder: Path, rates: dict[str, float]) -> None:
    rows = [f'{{"id": "{name}", "prompt": "?", "rate": {rate}}}' for name, rate in rates.items()]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")


def config_of(**eval_section: object) -> RunConfig:
    section = {
        "source": "rows.jsonl",
        "difficulty": {"keep": [0.1, 0.9], "source": "column:rate"},
    }
    return parse_config(
        {
            "env": {"target": "x:Y"},
            "dataset": section,
            "eval": {"datasets": {"held": {**section, **eval_section}}},
        }
    )


def sections(config: RunConfig) -> Mapping[str, DatasetSection]:
    return dataset_sections(plan_run(config, Path.cwd()).tasks)


def load(config: RunConfig, base: Path, chosen: Mapping[str, Chosen] | None = None) -> TaskSets:
    return load_task_sets(plan_run(config, base).tasks, chosen=chosen)


def ids(tasks: TaskSets) -> tuple[list[str], list[str]]:
    return [task.id for task in tasks.train], [task.id for task in tasks.evals["held"]]


def test_measured_again_they_are_the_same(tmp_path: Path) -> None:
    write_rows(tmp_path, {"a": 0.5, "b": 1.0, "c": 0.5})
    file = tmp_path / "kept.json"
    config = config_of()
    assert read_chosen(file, sections(config), base=tmp_path) == {}
    write_chosen(file, sections(config), load(config, tmp_path))
    write_rows(tmp_path, {"a": 1.0, "b": 0.5, "c": 0.5})
    again = load(config, tmp_path, read_chosen(file, sections(config), base=tmp_path))
    assert ids(again) == (["a", "c"], ["a", "c"])
    # The evaluation is now another one, and a resume may change it.
    other = config_of(difficulty={"keep": [0.0, 1.0], "source": "column:rate"})
    again = load(other, tmp_path, read_chosen(file, sections(other), base=tmp_path))
    assert ids(again) == (["a", "c"], ["a", "b", "c"])


def test_a_chosen_task_that_is_gone_is_named(tmp_path: Path) -> None:
    write_rows(tmp_path, {"a": 0.5, "c": 0.5})
    file, config = tmp_path / "kept.json", config_of()
    write_chosen(file, sections(config), load(config, tmp_path))
    write_rows(tmp_path, {"a": 0.5, "d": 0.5})
    with pytest.raises(DataError, match=r"1 of them are gone, as \['c'\]"):
        load(config, tmp_path, read_chosen(file, sections(config), base=tmp_path))
    file.write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        read_chosen(file, sections(config), base=tmp_path)


async def test_a_run_goes_on_although_the_measured_folder_is_gone(tmp_path: Path) -> None:
    """Fails if `train` does not write the choice, or if a resume or its dry run measures
    again."""
    from agentrl.config import load_config
    from tests.preflight.check_lines import dry_run
    from tests.runtime.tiny_project import write_project

    file = write_project(tmp_path, eval__n_samples=1)

    def read(name: str, *overrides: str) -> RunConfig:
        return load_config(file, [f"run.name={name}", "train.steps=1", *overrides])

    await train(read("first"), base=tmp_path, progress=Progress())
    by_rate = [
        "dataset.difficulty.keep=[0.0,1.0]",
        f"dataset.difficulty.source={tmp_path}/runs/first",
    ]
    await train(read("second", *by_rate), base=tmp_path, progress=Progress())
    (tmp_path / "runs" / "first").rename(tmp_path / "gone")
    config = read("second", *by_rate, "train.steps=2")
    result = await train(
        config, base=tmp_path, run_dir=open_run(config, base=tmp_path), progress=Progress()
    )
    assert result.steps == 2
    check = (await dry_run(config, tmp_path, resume=True))["datasets"]
    assert check.status is not Status.FAIL, check.detail
