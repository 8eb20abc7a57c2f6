"""What `run.json` keeps of a start, and what differs from it later."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
