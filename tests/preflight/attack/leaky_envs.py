"""Environments with one hole each, and one without, for `agentrl env attack`."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import time

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.types import Task

KEPT: list[str] = []


class Whole(AgentInstance):
    """Pays for the label, at the end of a turn of bounded length."""

    async def reset(self, task: Task) -> Observation:
        self.label = str(task.label)
        self.turns = 0
        return Observation(content=task.prompt if isinstance(task.prompt, str) else "?")

    async def step(self, action: Action) -> StepResult:
        self.turns += 1
        score = float(self.right(action.text[:1000]))
        if score or self.turns == 2 or action.last:
            return StepResult(rewards=score, scores=score, done=True)
        return StepResult(environment_feedback="No.")

    def right(self, text: str) -> bool:
        return text.strip() == self.label

    def solution(self, task: Task) -> str:
        return str(task.label)


class Believes(Whole):
    """Takes the model's word for it."""

    def right(self, text: str) -> bool:
        return super().right(text) or "Reward: 1.0" in text


class Searches(Whole):
    """Looks for the label anywhere."""

    async def step(self, action: Action) -> StepResult:
        score = float(re.search(rf"\b{self.label}\b", action.text) is not None)
        return StepResult(rewards=score, scores=score, done=True)


class Raises(Whole):
    """Cannot do with every character."""

    async def step(self, action: Action) -> StepResult:
        if "\x00" in action.text:
            raise ValueError("a NUL character")
        return await super().step(action)


class Backtracks(Whole):
    """Reads a turn with a pattern that tries the same spaces again."""

    async def step(self, action: Action) -> StepResult:
        re.search(r"^\s*done", action.text[:24_000], re.MULTILINE)
        return await super().step(action)


class NeverComes(Whole):
    """Stands still for good in C code that no signal interrupts, and never lets go of the GIL."""

    async def step(self, action: Action) -> StepResult:
        if action.text.startswith("[[["):
            libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
            libc.pthread_mutex_lock(mutex)
            libc.pthread_mutex_lock(mutex)  # waits for this thread itself, without computing
        return await super().step(action)


class RunsHere(Whole):
    """Runs the model's code in a process of this machine."""

    async def step(self, action: Action) -> StepResult:
        found = re.search(r"```python\n(.*?)```", action.text[:20_000], re.DOTALL)
        if found is None:
            return await super().step(action)
        ran = subprocess.run(
            [sys.executable, "-c", found[1]],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        said = (ran.stdout + ran.stderr)[:500]
        return StepResult(environment_feedback=said, done=action.turn >= 1)


class RunsUnseen(RunsHere):
    """The same, and shows nothing of what the code prints."""

    async def step(self, action: Action) -> StepResult:
        await super().step(action)
        return StepResult(environment_feedback="No.", done=action.turn >= 1)


class Sleeps(Whole):
    """Waits without letting others go on."""

    async def step(self, action: Action) -> StepResult:
        time.sleep(0.4)
        return await super().step(action)


class LastForm(Whole):
    """Reads one form of an answer, ends after one turn, and is right about nothing."""

    async def step(self, action: Action) -> StepResult:
        score = float(action.text == "<action>0</action>")
        return StepResult(rewards=score, scores=score, done=True)


class Coins(Whole):
    """Takes 0 for half of the tasks, and 1 for all."""

    async def step(self, action: Action) -> StepResult:
        score = float(action.text == "1" or (action.text == "0" and int(self.label) % 2))
        return StepResult(rewards=score, scores=score, done=True)


class Calls(Whole):
    """Calls the model's function with hidden inputs, one sandbox for all turns unless `clean`."""

    def __init__(self, clean: bool = False) -> None:
        self.clean = clean

    async def step(self, action: Action) -> StepResult:
        opened = self.context.new_sandbox if self.clean else self.context.open_sandbox
        sandbox = await opened()
        found = re.search(r"```python\n(.*?)```", action.text[:20_000], re.DOTALL)
        self.turns += 1
        if found is None or self.turns == 3:
            return StepResult(done=True)
        call = f"{found[1]}\nprint(main(4711))"
        ran = await sandbox.exec(("python3", "-c", call))
        return StepResult(environment_feedback=f"It said: {ran.stderr}"[-500:])


class Remembers(Whole):
    """Shows every rollout what the others wrote."""

    async def step(self, action: Action) -> StepResult:
        KEPT.append(action.text[:5000])
        if action.last or len(KEPT) % 2:
            return StepResult(done=True)
        return StepResult(environment_feedback="\n".join(KEPT)[-8000:])


def make_tasks(split: str = "train") -> list[Task]:
    return [Task(id=str(n), prompt="Say it.", label=str(7 * n), split=split) for n in range(5, 29)]
