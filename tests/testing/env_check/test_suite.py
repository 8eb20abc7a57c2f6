"""Planted faults: each environment has one, and the check reports exactly that one."""

from __future__ import annotations

import asyncio
import random
import subprocess
import threading
import time
from dataclasses import replace

import pytest
from agentrl_envs.arithmetic import ArithmeticTask
from agentrl_envs.arithmetic import make_tasks as arithmetic_tasks
from agentrl_envs.code import CodeTask, make_tasks
from agentrl_sandboxes import make_backend

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.errors import SandboxError, ToolError
from agentrl.sandbox import Isolation, Probe, SandboxBackend
from agentrl.testing.env_check.elsewhere import Elsewhere
from agentrl.testing.env_check.episode import CheckLimits
from agentrl.testing.env_check.findings import FIXES
from agentrl.testing.env_check.suite import check_env
from agentrl.tool import FunctionTool
from agentrl.types import Message, Task, ToolCall
from tests.envs.local_sandbox import LocalSandbox
from tests.testing.env_check.corpus import PAIRS

TASKS = (Task(id="a", prompt="Say 4", label="4"), Task(id="b", prompt="Say 5", label="5"))
LIMITS = CheckLimits(step_s=1.0, block_s=0.5, max_steps=8, repeat_s=0.1)
RELEASE: list = []
"""What a planted leak holds, so that its test can let go of it."""


class LocalBackend(SandboxBackend):
    name = "local"

    async def probe(self):
        return Probe(available=True, isolation=Isolation.WEAK, detail="a fake")

    async def create(self, limits, snapshot=None):
        return LocalSandbox()

    async def close(self):
        pass


def double(number: int) -> str:
    """Double a number.

    Args:
        number: any.
    """
    if number < 0:
        raise ToolError("too small")
    return str(2 * number)


class Good(AgentInstance):
    """Says the right thing at most three times; the faults below change one thing each."""

    reward_range = (0.0, 1.0)

    async def reset(self, task):
        self.label = task.label
        self.turns = 0
        return Observation(content=task.prompt)

    async def step(self, action):
        self.turns += 1
        right = action.text == self.label
        if right or self.turns >= 3 or action.last:
            return StepResult(rewards=float(right), scores=float(right), done=True)
        return StepResult(environment_feedback=f"Try {self.turns} was wrong")


class InPlace(Good):
    """Changes the result of the step it inherits."""

    def change(self, result: StepResult) -> dict:
        raise AssertionError("each fault says what it changes")

    async def step(self, action):
        result = await super().step(action)
        fields = {
            "rewards": result.rewards,
            "environment_feedback": result.environment_feedback,
            "done": result.done,
            "scores": result.scores,
        }
        return fields | self.change(result)


class E101(Good):
    async def reset(self, task):
        raise FileNotFoundError("data.json")


class E102(Good):
    def __init__(self):
        self.turns = 0

    async def reset(self, task):
        self.label = task.label
        return Observation(content=task.prompt)


class E103(Good):
    async def reset(self, task):
        await super().reset(task)
        return 42


class E104(Good):
    state: dict = {}  # noqa: RUF012 - the fault

    async def reset(self, task):
        E104.state["label"] = task.label
        E104.state["turns"] = 0
        return Observation(content=task.prompt)

    async def step(self, action):
        self.label = E104.state["label"]
        self.turns = E104.state["turns"]
        E104.state["turns"] += 1
        return await super().step(action)


class E104Port(Good):
    owner = None

    async def reset(self, task):
        if E104Port.owner not in (None, self):
            raise RuntimeError("the port is taken")
        E104Port.owner = self
        return await super().reset(task)

    async def close(self):
        E104Port.owner = None


class E105(Good):
    async def step(self, action):
        result = await super().step(action)
        return StepResult(rewards=random.random() / 4, done=result.done)


class E201(Good):
    async def step(self, action):
        return await super().step(Action(text=str(float(action.text))))


class E202(Good):
    async def step(self, action):
        _ = action.text.split()[0]
        return await super().step(action)


class E203(Good):
    async def step(self, action):
        if len(action.text) > 100_000:
            raise ValueError("too long")
        return await super().step(action)


class E204(Good):
    async def step(self, action):
        action.text.encode()
        return await super().step(action)


class E204Call(Good):
    async def step(self, action):
        for call in action.tool_calls:
            _ = call.arguments["x"]
        return await super().step(action)


class E205(Good):
    async def step(self, action):
        await asyncio.sleep(600)
        return await super().step(action)


class E206(Good):
    async def step(self, action):
        time.sleep(30)
        return await super().step(action)


class E207(Good):
    async def step(self, action):
        return StepResult(environment_feedback="again")


class E208(Good):
    async def step(self, action):
        if len(action.text) > 100_000:
            time.sleep(30)
        return await super().step(action)


class E209(Good):
    def step(self, action):
        return StepResult(rewards=0.0, done=True)


class E209Reset(Good):
    def reset(self, task):
        return Observation(content=task.prompt)


class E209Close(Good):
    def close(self):
        pass


class E301(InPlace):
    def change(self, result):
        return {"rewards": "1.0"}


class E301Bool(InPlace):
    def change(self, result):
        return {"rewards": result.rewards == 1.0}


class E302(InPlace):
    def change(self, result):
        return {"rewards": float("nan")}


class E303(InPlace):
    def change(self, result):
        return {"rewards": 2.5 * result.rewards}


class E304(InPlace):
    def change(self, result):
        return {"scores": 7.0}


class E305(InPlace):
    def change(self, result):
        return {"environment_feedback": b"bytes"}


class E303Declared(Good):
    reward_range = (1.0,)


class E306(InPlace):
    def change(self, result):
        return {"extra_logs": {"said": "yes"}}


class E307(InPlace):
    def change(self, result):
        return {"done": "yes" if result.done else ""}


class E309(InPlace):
    def change(self, result):
        return {"explanation": {"verdict": "good"}}


class E310(InPlace):
    wants_history = True

    def change(self, result):
        return {"environment_feedback": "", "history": [{"role": "assistant", "content": "Done."}]}


class E310Unwanted(Good):
    async def step(self, action):
        result = await super().step(action)
        if result.done:
            return result
        again = Message(role="user", content="Again.")
        return replace(result, environment_feedback="", history=(again,))


class E310Feedback(InPlace):
    wants_history = True

    def change(self, result):
        asked = [{"role": "user", "content": "Again."}]
        return {"environment_feedback": "Again.", "history": asked}


class E310Tools(Good):
    async def step(self, action):
        return replace(await super().step(action), history_tools=())


class E310Image(Good):
    wants_history = True

    async def step(self, action):
        result = await super().step(action)
        picture = {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}
        if result.done:
            return result
        return replace(result, environment_feedback="", history=(*action.history, picture))


class E308(Good):
    async def step(self, action):
        return 1.0


class E401(Good):
    async def step(self, action):
        result = await super().step(action)
        return result if self.turns <= 3 else StepResult()


class E402(Good):
    async def close(self):
        del self.turns


class E403(Good):
    closed = False

    async def close(self):
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


class E404(Good):
    async def reset(self, task):
        RELEASE.append(asyncio.create_task(asyncio.sleep(600)))
        return await super().reset(task)


class E405(Good):
    async def reset(self, task):
        stop = threading.Event()
        RELEASE.append(stop)
        threading.Thread(target=stop.wait, args=(30,), daemon=True).start()
        return await super().reset(task)


class E406(Good):
    async def reset(self, task):
        RELEASE.append(subprocess.Popen(["sleep", "30"]))
        return await super().reset(task)


class E407(Good):
    async def step(self, action):
        sandbox = await self.context.open_sandbox()
        self.job = asyncio.create_task(sandbox.exec(("sleep", "30")))
        await asyncio.sleep(0)
        return await super().step(action)

    async def close(self):
        pass


class E501(Good):
    def solution(self, task):
        return task.metadata["answer"]


class E501Wrong(Good):
    def solution(self, task):
        return [task.label, 4]


class E502(Good):
    def solution(self, task):
        return f"It is {task.label}."


class E502Call(Good):
    def solution(self, task):
        return [ToolCall(id="", name="bash", arguments={"command": "ls"}, raw=""), task.label]


FAULTS = [
    fault for name, fault in list(globals().items()) if name[:1] == "E" and name[1:4].isdigit()
]


@pytest.fixture(autouse=True)
def _let_go():
    yield
    for item in RELEASE:
        if isinstance(item, threading.Event):
            item.set()
        elif isinstance(item, subprocess.Popen):
            item.kill()
            item.wait()
    RELEASE.clear()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_a_planted_fault_gives_exactly_its_finding(fault):
    findings = await check_env(fault, TASKS, limits=LIMITS, backend=LocalBackend())
    assert [finding.name for finding in findings] == [fault.__name__[:4]], findings
    assert findings[0].detail
    assert findings[0].fix


def test_every_code_has_a_planted_fault():
    planted = {fault.__name__[:4] for fault in FAULTS} | {pair.code for pair in PAIRS}
    assert planted == set(FIXES)


@pytest.fixture
async def backend():
    """A real backend; the weakest one works on every machine."""
    made = await make_backend("process")
    yield made
    await made.close()


async def test_sound_environments_are_clean(backend):
    assert await check_env(Good, TASKS, limits=LIMITS) == []
    assert await check_env(ArithmeticTask, arithmetic_tasks(n=3)) == []
    assert await check_env(CodeTask, make_tasks(n=2), backend=backend) == []


async def test_a_solution_is_played_with_the_tools_that_are_offered():
    """Fails if the check asks for no solution, or leaves its calls out."""

    class Solved(Good):
        async def reset(self, task):
            return replace(await super().reset(task), tools=(FunctionTool(double),))

        async def step(self, action):
            texts.extend(result.text for result in action.tool_results)
            return await super().step(action)

        def solution(self, task):
            asked.append(task.id)
            calls = [{"number": -1}, {"number": int(task.label)}]
            named = [ToolCall(id="", name="double", arguments=one, raw="") for one in calls]
            return [*named, task.label]

    texts, asked = [], []
    assert await check_env(Solved, TASKS, limits=LIMITS) == []
    assert asked == ["a", "b"]
    assert {"too small", "8", "10"} <= set(texts)


async def test_an_environment_that_changes_its_history_is_clean():
    """Fails if the check does not fill `Action.history`, or does not go on behind a history."""

    class Compacts(Good):
        wants_history = True
        seen: list[list[str]] = []  # noqa: RUF012 - shared by the instances of the check

        async def step(self, action):
            result = await super().step(action)
            self.seen.append([message.content for message in action.history])
            if result.done:
                return result
            summary = Message(role="user", content=f"So far {self.turns}.")
            return replace(result, environment_feedback="", history=(summary,))

    assert await check_env(Compacts, TASKS, limits=LIMITS) == []
    assert ["Say 4", "42"] in Compacts.seen
    assert ["So far 1.", "42"] in Compacts.seen


async def test_a_solution_that_functions_pay_for_is_not_accused():
    """Fails if the check judges the pay of an environment that leaves it to `reward.functions`."""

    class Unpaid(Good):
        async def step(self, action):
            return replace(await super().step(action), rewards=0.0, scores=None)

        def solution(self, task):
            return task.label

    assert await check_env(Unpaid, TASKS[:1], limits=LIMITS, paid=False) == []
    findings = await check_env(Unpaid, TASKS[:1], limits=LIMITS)
    assert [finding.name for finding in findings] == ["E502"]


async def test_no_two_rollouts_at_once_have_the_same_id(tmp_path):
    """Fails if an environment is accused that keeps its files in a folder of its rollout."""

    class Files(Good):
        folder = None

        async def reset(self, task):
            await self.close()
            self.folder = tmp_path / self.context.rollout_id
            self.folder.mkdir()
            return await super().reset(task)

        async def step(self, action):
            await asyncio.sleep(0.001)
            return await super().step(action)

        async def close(self):
            if self.folder is not None:
                self.folder.rmdir()
            self.folder = None

    assert await check_env(Files, TASKS, limits=LIMITS) == []


async def test_a_broken_sandbox_says_nothing_about_the_environment():
    class Broken(LocalBackend):
        async def create(self, limits, snapshot=None):
            raise SandboxError("no space left")

    with pytest.raises(SandboxError, match="no space"):
        await check_env(CodeTask, make_tasks(n=1), backend=Broken())


async def test_a_tool_whose_close_fails_is_a_finding_and_no_tool_is_shared():
    """Fails if the check ends there, or gives the same tool to two episodes."""

    class Closing(FunctionTool):
        def fresh(self):
            made.append(Closing(double))
            return made[-1]

        async def close(self):
            closed.append(self)
            raise OSError("the connection is gone")

    class Given(Good):
        async def reset(self, task):
            assert self.context.tools[0] in made
            return await super().reset(task)

    made, closed = [], []
    (finding,) = await check_env(Given, TASKS[:1], limits=LIMITS, tools=[Closing(double)])
    assert finding.name == "E402"
    assert "close of the tool double raised OSError" in finding.detail
    assert set(closed) == set(made)
    assert len(closed) == len(made)


async def test_what_differs_here_is_named_though_no_other_process_answers():
    class Drawn(Good):
        async def reset(self, task):
            return replace(await super().reset(task), content=f"Say {random.random()}")

    with Elsewhere({"base": "."}) as others:
        for process in others._started:
            process.close()
        findings = await check_env(Drawn, TASKS[:1], limits=LIMITS, elsewhere=others)
    assert [finding.name for finding in findings] == ["E105"]


async def test_no_task_is_an_error():
    with pytest.raises(ValueError, match="at least one task"):
        await check_env(Good, [])


async def test_the_check_leaves_nothing_behind_itself():
    before = asyncio.all_tasks()
    await check_env(E404, TASKS, limits=LIMITS)
    assert asyncio.all_tasks() == before


async def test_one_process_for_all_episodes_is_no_leak_and_stays():
    class Shared(Good):
        async def reset(self, task):
            if not RELEASE:
                RELEASE.append(subprocess.Popen(["sleep", "30"]))
            return await super().reset(task)

    assert await check_env(Shared, TASKS, limits=LIMITS) == []
    assert RELEASE[0].poll() is None
