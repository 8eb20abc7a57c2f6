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
    files = origin_of(config, tmp_path)["files"]
    assert sorted(files) == sorted(map(str, rows.rglob("*.jsonl")))
    assert all(files.values())
    monkeypatch.setattr("agentrl.disk.origin._MOST_FILES", 3)
    first = sorted(map(str, rows.glob("*.jsonl")))[:3]
    assert sorted(origin_of(config, tmp_path)["files"]) == first
    walked = parse_config({"env": {"target": "a:B"}, "dataset": {"source": "/proc"}})
    assert len(origin_of(walked, tmp_path)["files"]) == 3
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
