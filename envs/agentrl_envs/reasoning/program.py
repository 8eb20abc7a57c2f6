"""One puzzle, answered by a program: what it prints is the answer."""

from __future__ import annotations

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.errors import ConfigError, SandboxError
from agentrl.plugins.own_threads import own_thread
from agentrl.sandbox import ExecResult, Outcome
from agentrl.types import Explanation, Task
from agentrl.types.solved import is_solved
from agentrl_envs.clean_sandbox import CleanSandbox
from agentrl_envs.code.extract import extract_code
from agentrl_envs.fault import Graded, graded
from agentrl_envs.reasoning.env import LONGEST, entry_of
from agentrl_envs.reasoning.judge import judge

INSTRUCTION = "\n\nWrite a Python program that prints the answer and nothing else."
_SHOWN = 120
"""Characters of what a program printed that the model reads again."""


class ReasoningProgram(AgentInstance):
    """Answer a puzzle with a Python program, which runs in a sandbox that is wiped for each try.

    A program that fails, prints nothing or prints a wrong answer is described to the model, which
    writes another one. The verifier of reasoning-gym judges what was printed, outside the sandbox.
    A program that keeps itself from being run to its end earns nothing; see `agentrl_envs.fault`.

    Args:
        tries: programs the model may write.
        wall_s: seconds one of them may take.
        setup: lines that run before each program, as `from math import *`.
        python: the interpreter inside the sandbox.
    """

    needs_label = True
    reward_range = (0.0, 1.0)

    def __init__(
        self, tries: int = 2, wall_s: float = 2.0, setup: str = "", python: str = "python3"
    ) -> None:
        if tries < 1 or wall_s <= 0:
            raise ConfigError(
                f"ReasoningProgram needs tries >= 1 and wall_s > 0, got {tries} and {wall_s}"
            )
        self.tries = tries
        self.wall_s = wall_s
        self.setup = setup
        self.python = python

    async def reset(self, task: Task) -> Observation:
        """Show the model its puzzle.

        Raises:
            ValueError: the task is not one of `make_tasks`.
        """
        self._family, self._entry = entry_of(task)
        self._turns = 0
        self._logs: dict[str, float] = {}
        self._sandbox = CleanSandbox(self.context.new_sandbox)
        return Observation(content=f"{self._entry['question']}{INSTRUCTION}")

    async def step(self, action: Action) -> StepResult:
        """Run the program of this turn, and judge what it printed.

        Raises:
            GraderError: the verifier cannot be run.
            SandboxError: the sandbox failed.
        """
        self._turns += 1
        score, ran, problem, output = 0.0, False, "There is no program in that.", ""
        code = extract_code(action.text, action.tool_calls, "main")
        if code is not None:
            found = await self._ran(f"{self.setup}\n{code}")
            self._logs = found.logs
            result = found.verdict
            ran = result is not None and result.outcome is Outcome.OK
            problem = _problem_of(result, self.wall_s)
            output = "" if result is None else f"{result.stdout}{result.stderr}"
            answer = "" if result is None else result.stdout.strip()
            if ran and 0 < len(answer) <= LONGEST:
                verdict = await own_thread(judge, self._family, answer, self._entry)
                score = float(is_solved(verdict.score))
        if not score and self._turns < self.tries and not action.last:
            return StepResult(environment_feedback=f"{problem} Write the whole program again.")
        return StepResult(
            rewards=score,
            done=True,
            scores=score,
            reward_parts={"answer": score},
            extra_logs={
                "solved": score,
                "ran": float(ran),
                "tries": float(self._turns),
                **self._logs,
            },
            explanation=Explanation(
                reference=str(self._entry["answer"] or ""),
                grader_output=output,
                reason="The program printed the answer." if score else problem,
            ),
        )

    async def _ran(self, program: str) -> Graded[ExecResult]:
        # Before the program runs: no failure until then can be its doing.
        await self._sandbox.ready()
        return await graded(lambda: self._run(program), control=lambda: self._run("print()"))

    async def _run(self, program: str) -> ExecResult:
        try:
            sandbox = await self._sandbox.lend()
            source = program.encode("utf-8", "replace")
            return await sandbox.exec((self.python, "-"), stdin=source, timeout_s=self.wall_s)
        except SandboxError:
            await self._sandbox.discard()
            raise

    def solution(self, task: Task) -> str | None:
        """A program that prints the generator's own answer; None where there is none."""
        answer = task.label.get("answer") if isinstance(task.label, dict) else None
        return None if answer is None else f"```python\nprint({answer!r})\n```"


def _problem_of(result: ExecResult | None, wall_s: float) -> str:
    if result is None:
        return "The program could not be run to its end."
    if result.outcome is Outcome.TIMEOUT:
        return f"The program did not finish within {wall_s:g} s."
    if result.outcome is Outcome.OOM:
        return "The program used too much memory."
    if result.outcome is Outcome.OUTPUT_LIMIT:
        return "The program printed too much."
    if result.outcome is not Outcome.OK:
        last = result.stderr.strip().rpartition("\n")[2]
        return f"The program failed: {_short(last) or f'exit status {result.exit_code}'}."
    printed = result.stdout.strip()
    if not printed:
        return "The program printed nothing."
    return f"The program printed {_short(printed)}, which is not the answer."


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
