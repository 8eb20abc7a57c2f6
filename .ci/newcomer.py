"""Run what needs bubblewrap, Docker or Chromium where none of them is to be found.

    python .ci/newcomer.py [FILE OR FOLDER ...]

A newcomer's machine has none of them, and `make test` must pass there: all tests are collected, and
what needs a missing part is skipped with a reason. In CI every part is there, so nothing else would
notice a test that fails instead.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

HIDDEN = re.compile(r"bwrap|docker.*|containerd.*|chromium.*|(google-)?chrome.*")
"""Programs of the parts that are to be missing."""
FILES = (
    "tests/inspect/browser",
    "tests/envs/screens/test_web.py",
    "tests/envs/screens/test_web_rewards.py",
    "tests/envs/harness/test_harness.py",
)
"""Tests that need a part and are not marked `docker`."""


def programs(path: str, folder: Path) -> None:
    """Link the programs of a search path into one folder, without those of the parts."""
    for place in filter(None, path.split(os.pathsep)):
        found = sorted(Path(place).iterdir()) if Path(place).is_dir() else ()
        for program in found:
            link = folder / program.name
            if not HIDDEN.fullmatch(program.name) and not link.is_symlink():
                link.symlink_to(program.absolute())


def environment(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The environment of a machine without the parts."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    programs(given.get("PATH", os.defpath), bin_folder)
    kept = {key: value for key, value in given.items() if key not in ("CI", "CHROMIUM")}
    missing = {"DOCKER_HOST": f"unix://{folder}/no-daemon.sock", "PATH": str(bin_folder)}
    return kept | missing | {"PLAYWRIGHT_BROWSERS_PATH": str(folder / "none")}


def main(files: list[str]) -> int:
    """Run both calls; fails if a test fails, or if no test misses a part."""
    # Every file is collected for the first one, whatever its tests need.
    calls = [["-m", "docker and not gpu", "tests"]] if not files else []
    calls += [["-m", "not (docker or fleet or ray or gpu or families)", *(files or FILES)]]
    with tempfile.TemporaryDirectory(prefix="agentrl-newcomer-") as folder:
        env = environment(Path(folder), os.environ)
        for call in calls:
            command = [sys.executable, "-m", "pytest", "-q", "-rfE", *call]
            run = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True)
            sys.stdout.write(run.stdout)
            if run.returncode or not re.search(r"^.*\b\d+ skipped", run.stdout, re.MULTILINE):
                print(f"agentrl: without the parts, {' '.join(call)}: failed, or skipped nothing")
                return 1
    print("agentrl: without bubblewrap, Docker and Chromium, what needs them is skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
