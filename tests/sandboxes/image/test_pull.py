"""Images of a data set: which are here, and fetching those that are not, from a registry."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from agentrl_sandboxes.image import PullProgress, absent_images, pull_images

from agentrl.cli import main
from agentrl.errors import ConfigError
from tests.envs.swe.test_readers import BENCH
from tests.sandboxes.image.local_registry import registry

pytestmark = pytest.mark.docker


@contextlib.contextmanager
def removed(*names: str):
    try:
        yield
    finally:
        subprocess.run(["docker", "image", "rm", "-f", *names], capture_output=True, check=False)


def status(command: list[str]) -> int:
    """The exit status of a command."""
    with pytest.raises(SystemExit) as ended:
        main(command)
    return int(ended.value.code or 0)


async def test_images_are_fetched_with_progress_and_a_wrong_one_is_named() -> None:
    with registry("team/pulled") as name, removed(name):
        other = name.replace("pulled", "nothing")
        assert await absent_images([name, other, name]) == [name, other]
        said: list[PullProgress] = []
        failed = await pull_images([name, other], said.append)
        assert list(failed) == [other]
        assert "manifest" in failed[other]
        assert await absent_images([name, other]) == [other]
        mine = [it for it in said if it.name == name]
        assert mine[-1].ended
        assert max(it.done_bytes for it in mine) == max(it.all_bytes for it in mine) > 3_000_000


async def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="not the name of an image"):
        await absent_images(["Upper Case"])


def test_the_command_counts_rows_and_fetches_their_images(tmp_path: Path, capsys: Any) -> None:
    with registry("team/pulled") as name, removed(name):
        rows = [
            {**BENCH, "image_name": name},
            {**BENCH, "instance_id": "strange", "repo": "a/b", "FAIL_TO_PASS": ["it works"]},
        ]
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        command = ["tasks", "images", str(file), "--skip-unsupported"]
        assert status(command) == 1
        said = capsys.readouterr().out
        assert "1 of 2 rows left out" in said
        assert "1 of a/b (its tests cannot be run)" in said
        assert "1 row, 1 image: 0 here, 1 not" in said
        assert status([*command, "--pull"]) == 0
        assert "1 of 1 image fetched" in capsys.readouterr().out
        assert status(command) == 0
