"""Rows of other data sets, whose repositories lie in container images, from reading to reward."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from agentrl_envs.swe import swe_bench, swe_smith
from agentrl_envs.swe.readers import reverse
from agentrl_sandboxes import make_backend

from agentrl.errors import GraderError, SandboxUnavailable
from tests.envs.swe.swe_episode import GOLD, play
from tests.envs.swe.swe_library import BASE, FAILING, GOOD, HIDDEN, PASSING, PATCH, make_folder

pytestmark = pytest.mark.docker
IMAGE = "agentrl-test-swe"
TEST_PATCH = (
    "diff --git a/tests/test_hidden.py b/tests/test_hidden.py\nnew file mode 100644\n"
    "--- /dev/null\n+++ b/tests/test_hidden.py\n"
    f"@@ -0,0 +1,{len(HIDDEN.splitlines())} @@\n"
    + "".join(f"+{line}\n" for line in HIDDEN.splitlines())
)
ROW = {
    "repo": "tiny/tinylib",
    "base_commit": "c0ffee",
    "problem_statement": "clamp gives values above the upper bound.",
    "patch": PATCH,
    "image_name": IMAGE,
    # The images of these data sets have a conda environment; this one has the system's Python.
    "test_command": ["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
    "test_env": {"PYTHONHASHSEED": "0"},
}
BENCH = {
    **ROW,
    "instance_id": "tiny__tinylib-1",
    "test_patch": TEST_PATCH,
    "FAIL_TO_PASS": json.dumps(["tests/test_hidden.py::test_secret"]),
    "PASS_TO_PASS": json.dumps(list(PASSING)),
}
SMITH = {
    **ROW,
    "instance_id": "tiny__tinylib.c0ffee.1",
    "patch": reverse(PATCH),
    "FAIL_TO_PASS": list(FAILING),
    "PASS_TO_PASS": list(PASSING),
}


def lay_out(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """One image with the broken repository, its history, and a mended one."""
    context = tmp_path_factory.mktemp("image")
    make_folder(context / "made")
    shutil.move(context / "made/environment", context / "packages")
    lay_out(context / "testbed", {**BASE, ".git/packed": "the fix"})
    lay_out(context / "mended", {**BASE, "tinylib/numbers.py": GOOD})
    (context / "Dockerfile").write_text(
        "FROM agentrl-sandbox\nCOPY packages /usr/lib/python3/dist-packages\n"
        "COPY testbed /testbed\nCOPY mended /mended\n"
    )
    made = subprocess.run(
        ["docker", "build", "-q", "-t", IMAGE, str(context)], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    yield IMAGE
    subprocess.run(["docker", "rmi", "-f", IMAGE], capture_output=True)


@pytest.fixture
async def backend():
    made = await make_backend("docker")
    yield made
    await made.close()


def tasks(reader, path: Path, row) -> list:
    path.write_text(json.dumps(row) + "\n")
    return list(reader(path.name, base_dir=path.parent))


async def test_a_swe_bench_row_is_played_in_its_image(image, backend, tmp_path):
    (task,) = tasks(swe_bench, tmp_path / "a.jsonl", BENCH)
    step = await play(backend, task, "test -d repo/tests -a ! -e repo/.git", GOLD)
    assert (step.rewards, step.extra_logs["changed_files"]) == (1.0, 1.0)
    hidden = "test ! -e repo/tests/test_hidden.py; ! grep -rl test_secret / --include=*.py"
    assert (await play(backend, task, f"{hidden} 2>/dev/null")).rewards == 0.0


async def test_a_swe_smith_row_starts_from_its_bug(image, backend, tmp_path):
    (task,) = tasks(swe_smith, tmp_path / "a.jsonl", SMITH)
    task.label["workspace"]["image_root"] = "/mended"
    assert (await play(backend, task, GOLD)).rewards == 1.0
    assert (await play(backend, task)).rewards == 0.0


async def test_what_a_row_says_and_its_image_has_not_is_no_reward_of_0(image, backend, tmp_path):
    (task,) = tasks(swe_bench, tmp_path / "a.jsonl", BENCH)
    task.label["workspace"]["image_root"] = "/nowhere"
    with pytest.raises(GraderError, match="could not copy /nowhere of image agentrl-test-swe"):
        await play(backend, task, GOLD)
    (task,) = tasks(swe_bench, tmp_path / "a.jsonl", {**BENCH, "test_patch": "--- a/x\n+++ b/x\n"})
    with pytest.raises(GraderError, match="could not apply test_patch of tiny__tinylib-1"):
        await play(backend, task, GOLD)
    (task,) = tasks(swe_bench, tmp_path / "a.jsonl", {**BENCH, "image_name": "agentrl-no-such"})
    with pytest.raises(SandboxUnavailable, match="agentrl-no-such"):
        await play(backend, task, GOLD)
