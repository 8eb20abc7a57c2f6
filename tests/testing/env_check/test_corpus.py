"""Every planted fault of the corpus is named, and no sound environment is accused."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.cli.env.target import target_of
from agentrl.data import load_tasks
from agentrl.testing.env_check.elsewhere import Elsewhere
from agentrl.testing.env_check.episode import CheckLimits
from agentrl.testing.env_check.opened import opened_env
from agentrl.testing.env_check.suite import check_env
from tests.testing.env_check.corpus import PAIRS, source

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # what the faults leave open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
WAITS = {"tool_blocks", "step_blocks", "program_waits", "cancel_swallowed"}
"""Pairs that wait for what they plant."""
HERE = [
    pytest.param(pair, marks=[pytest.mark.slow] * (pair.name in WAITS), id=pair.name)
    for pair in PAIRS
    if not pair.elsewhere
]
THERE = [pair for pair in PAIRS if pair.elsewhere]
LIMITS = CheckLimits(repeat_s=0.1)


def codes_of(folder, places, *, elsewhere: bool) -> list[str]:
    """Codes of what is found in an environment, with the tasks beside it."""
    file = folder / "planted.py"
    file.write_text(source(places))
    found = target_of(f"{file}:Env", (), None, (), "none")
    assert found.dataset is not None
    tasks = load_tasks(found.dataset, base=found.base)

    async def check() -> list[str]:
        async with opened_env(found.env, None, base=found.base) as env:
            if not elsewhere:
                return [f.name for f in await check_env(env.make_env, tasks, limits=LIMITS)]
            with Elsewhere({**found.plain(found.dataset), "base": str(found.base)}) as others:
                findings = await check_env(env.make_env, tasks, limits=LIMITS, elsewhere=others)
                return [finding.name for finding in findings]

    return asyncio.run(check())


@pytest.mark.parametrize("pair", HERE)
def test_a_fault_is_named_and_its_twin_is_not_accused(pair, tmp_path):
    (tmp_path / "sound").mkdir()
    assert pair.code in codes_of(tmp_path, pair.fault, elsewhere=False)
    assert codes_of(tmp_path / "sound", pair.sound, elsewhere=False) == []


FORKS = """
if sys.argv[0].endswith("child_main.py"):
    forked = os.fork()
    if not forked:
        time.sleep(600)
        os._exit(0)
    with Path(__file__).with_name("forked").open("a") as file:
        file.write(f"{forked}\\n")
"""


def test_another_process_shows_the_order_of_a_set_and_leaves_none_behind(tmp_path):
    """Fails too if a process that an environment forks holds up the end, or outlives it."""
    (pair,) = [pair for pair in THERE if pair.name == "order_of_a_set"]
    assert codes_of(tmp_path, {**pair.fault, "top": FORKS}, elsewhere=True) == [pair.code]
    forked = (tmp_path / "forked").read_text().split()
    assert len(forked) >= 3
    assert not [pid for pid in forked if Path(f"/proc/{pid}").exists()]


def test_the_other_clock_shows_dates_as_they_are():
    """Fails if an environment that shows a fixed date differs under the clock that is shifted."""
    code = (
        "import datetime as d, pickle, time\n"
        "def shown(): return repr([d.date(2024, 2, 1), d.datetime(2024, 2, 1, 3), d.date.__name__,"
        " pickle.loads(pickle.dumps(d.datetime(2024, 2, 1)))])\n"
        "from agentrl.testing.env_check.clock import shift_clock\n"
        "before, now = shown(), time.time()\n"
        "shift_clock(1e6)\n"
        "assert shown() == before, shown()\n"
        "assert d.datetime.now().timestamp() - now > 9e5\n"
        "assert isinstance(d.datetime.now(), d.datetime)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("pair", THERE, ids=lambda pair: pair.name)
def test_other_processes_name_a_fault_and_do_not_accuse_its_twin(pair, tmp_path):
    (tmp_path / "sound").mkdir()
    assert codes_of(tmp_path, pair.fault, elsewhere=True) == [pair.code]
    assert codes_of(tmp_path / "sound", pair.sound, elsewhere=True) == []
