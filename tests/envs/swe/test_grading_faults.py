"""What kills the test programs from outside is not the agent's doing; what it kills itself is."""

from __future__ import annotations

import dataclasses
import json
import shlex

import pytest

from agentrl.errors import GraderError, SandboxError
from agentrl.sandbox import Outcome
from tests.envs.strongest_backend import strongest_backend
from tests.envs.swe.swe_episode import GOLD, play
from tests.envs.swe.swe_library import make_folder


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("swe"))[0]


@pytest.fixture
async def backend():
    made = strongest_backend()
    yield made
    await made.close()


def without_report(stdout: str) -> str:
    """What a judge has said that was killed while the tests ran."""
    return stdout.split("start\n")[0] + "start\n"


def without_runner(stdout: str) -> str:
    """What a judge says whose test runner was killed before the first test."""
    head, _, report = stdout.strip().rpartition("\n")
    nonce, _, text = report.partition(" ")
    said = json.loads(text)
    said |= {"states": "m" * len(said["states"]), "exit": -9}
    return f"{head}\n{nonce} {json.dumps(said)}\n"


def out_of_memory(stdout: str) -> str:
    """What a judge has said that the limit of its sandbox ended while the tests ran."""
    return without_report(stdout)


class Killing:
    """A machine that kills the judge, or the runner, of the first gradings."""

    def __init__(self, backend, victim, times):
        self.backend, self.victim, self.times = backend, victim, times
        self.on = False

    def start(self):
        self.on = True

    async def take(self, spec, limits):
        return KilledIn(await self.backend.take(spec, limits), self)


class KilledIn:
    """A sandbox on such a machine."""

    def __init__(self, sandbox, machine):
        self.sandbox, self.machine = sandbox, machine

    def __getattr__(self, name):
        return getattr(self.sandbox, name)

    async def exec(self, argv, **args):
        result = await self.sandbox.exec(argv, **args)
        if not (self.machine.on and self.machine.times and "-I" in argv and args.get("stdin")):
            return result
        self.machine.times -= 1
        stdout = self.machine.victim(result.stdout)
        code = -9 if self.machine.victim is without_report else 0
        outcome = Outcome.NONZERO if code else Outcome.OK
        if self.machine.victim is out_of_memory:
            code, outcome = None, Outcome.OOM
        return dataclasses.replace(result, stdout=stdout, exit_code=code, outcome=outcome)


@pytest.mark.parametrize("victim", [without_report, without_runner])
async def test_one_kill_from_outside_costs_a_repair_nothing(victim, backend, task):
    """Caught: a machine short of memory takes the reward of a right repair, and 0 is trained on."""
    machine = Killing(backend, victim, 1)
    step = await play(machine, task, GOLD, before_grading=machine.start)
    assert (step.rewards, machine.times) == (1.0, 0), step.extra_logs
    assert step.extra_logs["grading_repeated"] == float(victim is without_report)


@pytest.mark.parametrize(
    ("victim", "error"),
    [
        (without_report, (SandboxError, "ended before its report: exit status -9")),
        (without_runner, (GraderError, "the tests are killed, with or without")),
        (out_of_memory, (GraderError, "the tests are killed, with or without")),
    ],
)
async def test_a_machine_that_kills_every_judge_is_no_reward_of_0(victim, error, backend, task):
    """Caught: a runner that is killed on an untouched tree, too, gave a right repair 0."""
    machine = Killing(backend, victim, 100)
    with pytest.raises(error[0], match=error[1]):
        await play(machine, task, GOLD, before_grading=machine.start)


@pytest.mark.parametrize("victim", ["os.getppid()", "os.getpid()"])
async def test_code_that_kills_its_judge_or_runner_earns_nothing(victim, backend, task):
    """Caught: the agent as infrastructure, now that a judge without a report is an error."""
    text = f"import os; 'pytest' in __import__('sys').modules and os.kill({victim}, 9)"
    script = f"{GOLD}; echo {shlex.quote(text)} >>repo/tinylib/numbers.py"
    step = await play(backend, task, script)
    assert (step.rewards, step.scores, step.done) == (0.0, 0.0, True)
    assert step.extra_logs["grading_broken"] == float(victim == "os.getppid()")
