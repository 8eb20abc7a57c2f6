"""What `run.json` keeps of a start, and what differs from it later."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from agentrl.config import parse_config
from agentrl.config.load import RUN_FILE
from agentrl.disk.origin import differences, origin_of
from agentrl.disk.run_directory import RunDir


def git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"]
    command = ["git", "-C", str(folder), *names, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_run_keeps_commit_command_versions_and_digests(tmp_path: Path) -> None:
    """Fails if a file that the config names, or its code imports, may change unseen."""
    (tmp_path / "env.py").write_text("class Env: pass\n")
    (tmp_path / "tasks.jsonl").write_text("{}\n")
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "a.jsonl").write_text("{}\n")
    git(tmp_path, "init")
    git(tmp_path, "add", "env.py")
    git(tmp_path, "commit", "-m", "first")
    config = RUN_FILE.whole(
        parse_config(
            {
                "env": {"target": "env.py:Env"},
                "dataset": {"source": "tasks.jsonl"},
                "eval": {"datasets": {"held": {"source": "held"}}},
                "run": {"dir": str(tmp_path / "runs"), "name": "one"},
            }
        ),
        tmp_path,
    )
    run = RunDir.create(config, base=tmp_path)
    run.adopt(config, base=tmp_path)
    starts = json.loads((run.path / "run.json").read_bytes())["starts"]
    run.close()
    assert len(starts) == 2
    first = starts[0]
    assert first["command"] == sys.argv
    assert first["versions"].keys() >= {"agentrl", "python", "torch", "transformers"}
    assert first["git"][str(tmp_path)] == git(tmp_path, "rev-parse", "HEAD")
    named = {"env.py", "tasks.jsonl", "held/a.jsonl"}
    assert {str(tmp_path / name) for name in named} <= first["files"].keys()

    assert differences(first, origin_of(config, tmp_path)) == []
    (tmp_path / "env.py").write_text("class Env: size = 1\n")
    (tmp_path / "held" / "a.jsonl").unlink()
    found = differences({**first, "versions": {"torch": "1.0"}}, origin_of(config, tmp_path))
    assert f"{tmp_path}/env.py has changed" in found
    assert f"{tmp_path}/held/a.jsonl is gone" in found
    assert any(line.startswith("torch: 1.0 then, ") for line in found)
    assert any(line.endswith("with changes now") for line in found)


def test_what_a_start_reads_of_a_disk_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a start walks or reads a whole disk, or ends at a folder that changes meanwhile."""
    rows = tmp_path / "rows"
    (rows / "more").mkdir(parents=True)
    (rows / "more" / "z.jsonl").write_text("{}\n")
    for name in "abcd":
        (rows / f"{name}.jsonl").write_text("{}\n" * 2000)
    config = parse_config(
        {
            "env": {"target": "env.py:Env", "args": {"root": "/proc", "all": "/usr"}},
            "dataset": {"source": str(rows)},
        }
    )
    monkeypatch.setattr("agentrl.disk.origin._MOST_LISTED", 40)
    monkeypatch.setattr("agentrl.disk.origin._MOST_FILES", 30)
    files = origin_of(config, tmp_path)["files"]
    mine = {name: digest for name, digest in files.items() if not name.startswith("/usr/")}
    assert sorted(mine) == sorted(map(str, rows.rglob("*.jsonl")))
    assert files["/usr/"].endswith(" of names, sizes and times of its first 40 files")
    assert len(files) - len(mine) == 1  # a large folder of arguments is not read
    assert all(files.values())
    monkeypatch.setattr("agentrl.disk.origin._MOST_FILES", 3)
    first = sorted(map(str, rows.glob("*.jsonl")))[:3]
    config = parse_config({"env": {"target": "a:B"}, "dataset": {"source": str(rows)}})
    assert sorted(origin_of(config, tmp_path)["files"]) == [f"{rows}/", *first]
    walked = parse_config({"env": {"target": "a:B"}, "dataset": {"source": "/proc"}})
    assert origin_of(walked, tmp_path)["files"] == {}
    # What is left of the bytes decides how much of a later file is read, and never which.
    monkeypatch.setattr("agentrl.disk.origin._WHOLE_BYTES", 6000)
    monkeypatch.setattr("agentrl.disk.origin._MOST_BYTES", 12_000)
    monkeypatch.setattr("agentrl.disk.origin._LATER_BYTES", 16)
    before = origin_of(config, tmp_path)["files"]
    for name in "abc":
        (rows / f"{name}.jsonl").write_text("{}\n" * 200 + "[]\n" + "{}\n" * 1799)
    after = origin_of(config, tmp_path)["files"]
    assert [before[name] == after[name] for name in first] == [False, False, True]


def test_a_module_that_is_not_imported_yet_is_not_gone(tmp_path: Path) -> None:
    """Fails if `--again`, which looks before it imports, misses the helpers of an environment."""
    kept, changed, gone = (tmp_path / f"{name}.py" for name in ("kept", "changed", "gone"))
    config = parse_config({"env": {"target": "a:B"}, "dataset": {"source": "a:b"}})
    for file in (kept, changed, gone):
        file.write_text("x = 1\n")
        module = ModuleType(file.stem)
        module.__file__ = str(file)
        sys.modules[f"_origin_{file.stem}"] = module
    try:
        then = origin_of(config, tmp_path)
    finally:
        for file in (kept, changed, gone):
            del sys.modules[f"_origin_{file.stem}"]
    changed.write_text("x = 2\n")
    gone.unlink()
    found = differences(then, origin_of(config, tmp_path))
    assert found == [f"{changed} has changed", f"{gone} is gone"]


def test_folders_of_arguments_and_what_code_imports_beside_it_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the tasks of an environment, or the helpers of a reward, may change unseen."""
    home, rewards = tmp_path / "home", tmp_path / "rewards"
    for name, text in {
        "rewards/judge.py": "import helper\nfrom kit import score\nimport unused_elsewhere\n",
        "rewards/helper.py": "from kit.deep import inner\n",
        "rewards/other.py": "x = 1\n",
        "rewards/kit/__init__.py": "from . import score\n",
        "rewards/kit/score.py": "x = 1\n",
        "rewards/kit/deep.py": "inner = 1\n",
        "home/tasks/one/task.toml": "a = 1\n",
        "home/tasks/.git/index": "x",
        "home/tasks/old/run.json": "{}",
        "home/shelf/1": "1",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    config = parse_config(
        {
            "env": {"target": "a:B", "args": {"folder": "tasks", "more": [str(home / "shelf")]}},
            "dataset": {"source": "a:b"},
            "reward": {"functions": {"mine": {"target": f"{rewards}/judge.py:score"}}},
        }
    )
    then = origin_of(config, home)
    of_code = ("judge.py", "helper.py", "kit/__init__.py", "kit/score.py", "kit/deep.py")
    of_data = ("tasks/one/task.toml", "shelf/1")
    expected = {str(rewards / name) for name in of_code} | {str(home / name) for name in of_data}
    assert then["files"].keys() == expected
    (rewards / "kit" / "deep.py").write_text("inner = 2\n")
    (home / "tasks" / "one" / "task.toml").write_text("a = 2\n")
    (home / "shelf" / "1").unlink()
    assert differences(then, origin_of(config, home)) == [
        f"{home}/shelf/1 is gone",
        f"{home}/tasks/one/task.toml has changed",
        f"{rewards}/kit/deep.py has changed",
    ]
    # Of a large folder names, sizes and times count, and its line says so.
    monkeypatch.setattr("agentrl.disk.origin._MOST_FILES", 6)
    for number in range(20):
        (home / "shelf" / str(number)).write_text("1")
    then = origin_of(config, home)
    assert then["files"][f"{home}/shelf/"].endswith(" of names, sizes and times of 20 files")
    assert differences(then, origin_of(config, home)) == []
    (home / "shelf" / "19").write_text("1, and more")
    assert differences(then, origin_of(config, home)) == [f"{home}/shelf/ has changed"]
