"""A machine under load: tests that measure it decide no task, and no repair pays for it."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from agentrl_envs.swe import read_tasks
from agentrl_envs.swe.make.build import LIMITS
from agentrl_envs.swe.make.environment import Environment
from agentrl_envs.swe.make.project import TEST_ENV
from agentrl_envs.swe.make.suite import Stalls, Suite, SuiteRunner
from agentrl_envs.swe.make.validate import drop, validate_tasks
from agentrl_envs.swe.trees import TreeFile, TreeStore

from agentrl.errors import GraderError
from tests.envs.swe.make.swe_sdists import copy_environment
from tests.envs.swe.swe_episode import GOLD, play
from tests.envs.swe.swe_library import make_folder

pytestmark = pytest.mark.slow

TIMED = """
import datetime, time, timeit, unittest
from time import perf_counter

def seconds(size):
    start = perf_counter()
    sum(range(size))
    return perf_counter() - start

def test_twice_as_much_takes_at_most_four_times_as_long():
    small = sorted(seconds(1000) for _ in range(3))[1]
    assert sorted(seconds(2000) for _ in range(3))[1] < 4 * small + 0.1

def test_it_takes_at_most_two_seconds():
    start = time.time_ns()
    assert time.time_ns() - start < 2e9

def test_timeit_takes_at_most_ten_seconds():
    assert timeit.timeit(lambda: None, number=10) < 10

class TestCase(unittest.TestCase):
    def test_in_a_case(self):
        start = perf_counter()
        self.assertLess(perf_counter() - start, 2.0)

def test_no_pause_is_long():
    times = []
    for _ in range(100):
        time.sleep(0.01)
        times.append(datetime.datetime.now())
    longest = max(b - a for a, b in zip(times, times[1:]))
    assert longest < datetime.timedelta(seconds=0.1)

def test_reads_a_clock_and_asks_nothing_of_it():
    assert 0 < time.monotonic() <= time.monotonic()

class Timer:
    clock = time.monotonic

def test_a_clock_in_a_class():
    assert Timer().clock() > 0

def test_sums():
    assert sum(range(3)) == 3
"""
STEADY = {"test_reads_a_clock_and_asks_nothing_of_it", "test_a_clock_in_a_class", "test_sums"}
MEASURE = {
    Stalls.MORE: {"test_twice_as_much_takes_at_most_four_times_as_long"},
    Stalls.LESS: {
        "test_it_takes_at_most_two_seconds",
        "test_timeit_takes_at_most_ten_seconds",
        "test_in_a_case",
    },
}


COMMAND = ("python3", "-S", "-m", "pytest", "-q", "-p", "no:cacheprovider")


@pytest.fixture(scope="module")
def packages():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield copy_environment(Path(folder))


@pytest.fixture
async def timed(backend, packages):
    """Run the tests above; gives the names of those that pass."""
    runner = SuiteRunner(backend=backend, limits=LIMITS, environment=packages)
    suite = Suite(command=COMMAND, variables=TEST_ENV, python_path=(".",))
    snapshot = await runner.frozen({"test_timed.py": TreeFile(data=TIMED.encode())})

    async def run(stalls, *, stops=False):
        done = await runner.run(suite, snapshot, stalls=stalls, stops=stops)
        assert done.complete, done.output
        assert len(done.results) == 8
        return {name.rpartition("::")[2] for name in done.passed()}

    yield run
    await snapshot.close()


async def test_tests_that_measure_time_fail_on_clocks_that_fall_behind(timed):
    assert await timed(Stalls.NONE) >= STEADY
    for stalls, names in MEASURE.items():
        passed = await timed(stalls)
        assert passed >= STEADY
        assert not passed & names


async def test_tests_that_wait_without_reading_a_clock_fail_where_the_run_is_stopped(timed):
    passed = await timed(Stalls.NONE, stops=True)
    assert passed >= STEADY
    assert "test_no_pause_is_long" not in passed


async def test_seconds_do_not_count_what_other_programs_took(backend, packages):
    runner = SuiteRunner(backend=backend, limits=LIMITS, environment=packages)
    source = "import time\ndef test_busy():\n    while time.process_time() < 2.0: pass\n"
    suite = Suite(command=COMMAND, variables=TEST_ENV, python_path=(".",))
    snapshot = await runner.frozen({"test_busy.py": TreeFile(data=source.encode())})
    spin = ("sh", "-c", "while :; do :; done & while :; do :; done")
    # All of them on one core, which leaves the others to the tests that run beside this one.
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    other = subprocess.Popen(spin, start_new_session=True)
    started = time.monotonic()
    try:
        done = await runner.run(suite, snapshot, test_limit_s=3.0)
        wall_s = time.monotonic() - started
        stuck = await runner.run(suite, snapshot, test_limit_s=1.0)
    finally:
        os.sched_setaffinity(0, cores)
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()
        await snapshot.close()
    assert done.passed() == {"test_busy.py::test_busy"}
    assert 1.0 < done.results["test_busy.py::test_busy"].seconds < done.seconds < wall_s / 1.5
    assert stuck.stuck == "test_busy.py::test_busy"
    assert not stuck.complete


SLOW = """import pathlib, time, pytest
@pytest.fixture(autouse=True, scope="session")
def slow():
    time.sleep({})
"""


def slow_task(folder, seconds):
    """A task whose tests take so long, whoever changed the source."""
    task, _ = make_folder(folder)
    store = TreeStore(folder / "store")
    tree = dict(store.get(task.label["base_commit"]))
    tree["tests/conftest.py"] = TreeFile(data=SLOW.format(seconds).encode())
    return dataclasses.replace(task, label={**task.label, "base_commit": store.put(tree)})


async def test_a_repair_that_a_slow_machine_did_not_finish_is_dropped_and_not_paid_0(
    backend, tmp_path
):
    task = slow_task(tmp_path, 4)
    with pytest.raises(GraderError, match=r"limit of 3 s, .* the machine is under load"):
        await play(backend, task, GOLD, test_wall_s=3.0)
    assert (await play(backend, task, GOLD, test_wall_s=60.0)).rewards == 1.0


FLIPS = """import os
def test_flips():
    if not os.path.exists(PLACE):
        os.mkdir(PLACE)
        assert False
"""


async def test_what_flips_is_looked_at_again_named_and_dropped(backend, tmp_path):
    make_folder(tmp_path)
    seen, hidden = read_tasks(tmp_path)
    store = TreeStore(tmp_path / "store")
    flips, gone = "tests/test_flips.py::test_flips", "tests/test_numbers.py::test_gone"
    with tempfile.TemporaryDirectory() as shared:
        Path(shared).chmod(0o777)
        source = FLIPS.replace("PLACE", repr(f"{shared}/seen"))
        tree = {**store.get(seen.base_commit), flips[:19]: TreeFile(data=source.encode())}
        shaky = dataclasses.replace(
            seen, base_commit=store.put(tree), PASS_TO_PASS=(*seen.PASS_TO_PASS, flips)
        )
        wrong = dataclasses.replace(seen, instance_id="wrong", PASS_TO_PASS=(gone,))
        rows = [json.dumps(task.to_row()) + "\n" for task in (shaky, wrong, hidden)]
        (tmp_path / "tasks.jsonl").write_text("".join(rows))
        environment = Environment(folder=tmp_path / "environment", id="e", requirements=())
        found = [it async for it in validate_tasks(tmp_path, environment, backend, jobs=1)]
    assert [it.flips for it in found] == [(flips,), (), ()]
    first, second, third = (it.disagreements for it in found)
    assert first == third == ()
    assert second == tuple(f"with{out} the gold change, fails: {gone}" for out in ("out", ""))
    assert drop(tmp_path, found) == (1, 1)
    assert list(read_tasks(tmp_path)) == [
        dataclasses.replace(shaky, PASS_TO_PASS=seen.PASS_TO_PASS),
        hidden,
    ]
    # A task is no task without a test to be mended that always says the same.
    flip = dataclasses.replace(found[2], flips=(hidden.FAIL_TO_PASS[0],))
    assert drop(tmp_path, [flip]) == (1, 0)
