"""One rule for where the tasks of an environment are found, for every command that needs them."""

from __future__ import annotations

import pytest

from agentrl.cli.env.attack import _plan
from agentrl.cli.env.target import target_of
from agentrl.config import load_config
from agentrl.config.schema import DatasetSection
from agentrl.data import load_tasks
from agentrl.errors import ConfigError
from agentrl.plugins.tasks_beside import tasks_beside

ENV = """
class Env:
    {inside}
    async def reset(self, states): return states
    async def step(self, states): return {{"rewards": 0.0, "done": True}}
{below}
"""
ROW = '[{"prompt": "Say 1", "label": "1"}]'


def written(folder, inside="", below=""):
    file = folder / "env.py"
    file.write_text(ENV.format(inside=inside or "pass", below=below))
    return f"{file}:Env"


@pytest.mark.parametrize(
    ("inside", "below", "found"),
    [
        ("", f"def tasks(split='train'): return {ROW}", "env.py:tasks"),
        ("", f"def tasks(): return {ROW}", "env.py:tasks"),
        ("", f"def make_tasks(split, n=3): return {ROW}", "env.py:make_tasks"),
        ("", f"TASKS = {ROW}", "env.py:TASKS"),
        (f"TASKS = {ROW}", f"def tasks(path): return {ROW}", "env.py:Env.TASKS"),
        (f"tasks = staticmethod(lambda split: {ROW})", "", "env.py:Env.tasks"),
        ("tasks = []", f"TASKS = {ROW}", "env.py:TASKS"),
    ],
)
def test_every_command_finds_the_same_tasks(tmp_path, inside, below, found):
    target = written(tmp_path, inside, below)
    source = tasks_beside(target)
    assert source == f"{tmp_path}/{found}"
    assert [task.label for task in load_tasks(DatasetSection(source=source))] == ["1"]
    (tmp_path / "run.yaml").write_text("env: {target: env.py:Env}\n")
    assert load_config(tmp_path / "run.yaml").dataset.source == source
    for named in (target, str(tmp_path / "run.yaml")):
        checked = target_of(named, (), None, (), "none").dataset
        assert checked is not None
        assert checked.source == source
        assert _plan(named, (), None, (), "none").dataset["source"] == source


def test_the_current_folder_is_not_that_of_a_package_without_a_file(tmp_path, monkeypatch):
    """Fails if tasks that happen to lie in the current folder are played."""
    (tmp_path / "bare_package").mkdir()
    (tmp_path / "bare_package/env.py").write_text(ENV.format(inside="pass", below=""))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/tasks.jsonl").write_text('{"prompt": "Say 1", "label": "1"}\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert tasks_beside("bare_package.env:Env") is None


def test_a_file_and_a_module_beside_are_found(tmp_path):
    target = written(tmp_path)
    (tmp_path / "tasks.py").write_text(f"TASKS = {ROW}\n")
    assert tasks_beside(target) == f"{tmp_path}/tasks.py:TASKS"
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "Say 1"}\n')
    assert tasks_beside(target) == f"{tmp_path}/tasks.jsonl"


def test_a_package_around_a_module_is_searched():
    assert tasks_beside("agentrl_envs.code.env:CodeTask") == "agentrl_envs.code.tasks:make_tasks"


def test_where_there_are_none_a_run_is_refused_with_the_places(tmp_path):
    target = written(tmp_path, below="def tasks(path): return []")
    assert tasks_beside(target) is None
    (tmp_path / "run.yaml").write_text("env: {target: env.py:Env}\n")
    for refused in (
        lambda: load_config(tmp_path / "run.yaml"),
        lambda: _plan(target, (), None, (), "none"),
    ):
        with pytest.raises(ConfigError, match=r"has no tasks beside it: looked for tasks, make_ta"):
            refused()


def test_one_set_of_tasks_without_splits_is_no_other_split(tmp_path):
    written(tmp_path, below=f"def tasks(): return {ROW}\nTASKS = {ROW}")
    for name in ("tasks", "TASKS"):
        with pytest.raises(ConfigError):
            load_tasks(DatasetSection(source=f"{tmp_path}/env.py:{name}", split="test"))
