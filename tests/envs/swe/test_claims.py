"""Rows of other data sets that are no tasks, played without a container: the host is the image."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

import pytest
from agentrl_envs.swe import swe_bench

from agentrl.errors import GraderError
from agentrl.sandbox import Sandbox, SandboxBackend, SandboxLimits, SandboxSpec
from tests.envs.swe.swe_episode import GOLD, play
from tests.envs.swe.swe_library import BASE, FAILING, PASSING, PATCH, RUNNER_ENV, make_folder

EDIT = "echo '# new' >>repo/tinylib/numbers.py"


class HostAsImage:
    """A backend whose only image is this machine; counts the sandboxes it gives."""

    def __init__(self, inner: SandboxBackend) -> None:
        self.inner = inner
        self.given = 0

    async def take(self, spec: SandboxSpec, limits: SandboxLimits) -> Sandbox:
        self.given += 1
        return await self.inner.take(dataclasses.replace(spec, image=""), limits)


@pytest.fixture
def host(backend):
    return HostAsImage(backend)


@pytest.fixture(scope="module")
def testbed():
    """Where sandboxes of another user see it: pytest's own folders are private."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for path, text in BASE.items():
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_text(text)
        yield folder


@pytest.fixture
def bench(testbed, tmp_path):
    """A row of SWE-bench, changed."""

    def load(name: str, **changed):
        row = {
            "instance_id": name,
            "repo": "tiny/tinylib",
            "base_commit": "c0ffee",
            "problem_statement": "clamp gives values above the upper bound.",
            "patch": PATCH,
            "image_name": "any",
            "FAIL_TO_PASS": list(FAILING),
            "PASS_TO_PASS": list(PASSING),
            "test_command": [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests"],
            "test_env": RUNNER_ENV,
            **changed,
        }
        (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
        (task,) = swe_bench("rows.jsonl", base_dir=tmp_path)
        task.label["workspace"]["image_root"] = testbed
        return task

    return load


async def test_tests_that_pass_from_the_start_are_not_paid_for(host, bench):
    """Otherwise an edit that does nothing earns 1.0 here."""
    task = bench("passing", FAIL_TO_PASS=[PASSING[0]], PASS_TO_PASS=[PASSING[1]])
    for _ in range(2):
        with pytest.raises(GraderError, match=r"'passing': 1 of its 1 .*test_mean.*leave the row"):
            await play(host, task, EDIT)
    task = bench("partly", FAIL_TO_PASS=[*FAILING, PASSING[0]], PASS_TO_PASS=[PASSING[1]])
    with pytest.raises(GraderError, match=r"'partly': 1 of its 5 .*test_mean"):
        await play(host, task, GOLD)


async def test_a_claim_is_tried_once_in_a_process_and_never_for_own_rows(host, bench, tmp_path):
    async def given(*tasks) -> int:
        before = host.given
        steps = await asyncio.gather(*(play(host, task, GOLD) for task in tasks))
        assert [step.rewards for step in steps] == [1.0] * len(tasks)
        return host.given - before

    task = bench("honest")
    # The agent's, one to read what it was given, and two to grade in.
    every = 4
    # The claim, the row's files, and the right values: three runs.
    once = 5
    assert await given(task, task) == 2 * every + once
    assert await given(task) == every
    seen, _ = make_folder(tmp_path / "own")
    # The agent's, and two to grade in.
    assert await given(seen) == 3 + 3
    assert await given(seen) == 3


async def test_tests_that_never_run_are_no_reward_of_0(host, bench):
    nowhere = ["tests/test_numbers.py::test_gone"]
    task = bench("gone", FAIL_TO_PASS=nowhere)
    with pytest.raises(GraderError, match=r"'gone': none of its 1 .*with the gold.*test_gone"):
        await play(host, task, GOLD)
    # Without a gold change that fits, tests that are to pass anyhow say whether anything runs.
    task = bench("no-gold", FAIL_TO_PASS=nowhere, patch="--- a/tinylib/numbers.py\n")
    assert (await play(host, task, EDIT)).rewards == 0.0
    task = bench("no-gold-gone", FAIL_TO_PASS=nowhere, PASS_TO_PASS=nowhere, patch="--- a/x.py\n")
    with pytest.raises(GraderError, match=r"'no-gold-gone': none of its 1 PASS_TO_PASS"):
        await play(host, task, EDIT)
    # A change that keeps the tests of a right row from running is the agent's doing.
    task = bench("loads")
    assert (await play(host, task, "echo '(' >repo/tinylib/numbers.py")).rewards == 0.0


async def test_skipped_tests_do_not_run(host, bench, testbed):
    task = bench("skipped", FAIL_TO_PASS=["tests/test_late.py::test_late"])
    late = Path(testbed) / "tests/test_late.py"
    late.write_text("import pytest\n\n\n@pytest.mark.skip\ndef test_late(): pass\n")
    try:
        with pytest.raises(GraderError, match="'skipped': none of its 1 FAIL_TO_PASS"):
            await play(host, task, EDIT)
    finally:
        late.unlink()


async def test_a_test_that_is_expected_to_fail_is_kept_if_it_was_before(host, bench, testbed):
    """SWE-bench lists such tests in PASS_TO_PASS; a skip, and one that passes now, are not kept."""
    late = Path(testbed) / "tests/test_late.py"
    late.write_text("import pytest\n\n\n@pytest.mark.xfail\ndef test_never(): assert False\n")
    rows = {"FAIL_TO_PASS": FAILING, "PASS_TO_PASS": [*PASSING, "tests/test_late.py::test_never"]}
    gives_up = "import pytest\\ndef mean(v): pytest.xfail()\\n"
    lazy = f"{GOLD}\nprintf '{gives_up}' >>repo/tinylib/numbers.py"
    try:
        assert (await play(host, bench("expects", **rows), GOLD)).rewards == 1.0
        assert (await play(host, bench("expects", **rows), lazy)).rewards == 0.0
        late.write_text(late.read_text().replace("mark.xfail", "mark.skip"))
        assert (await play(host, bench("skips", **rows), GOLD)).rewards == 0.0
    finally:
        late.unlink()
