"""One episode in the rollout loop of a run, whose turns are typed.

Calls, results, limits of turns, endings and rewards are those of training; only the ids are bytes,
so the limits in tokens are lifted.
"""

from __future__ import annotations

import threading
from asyncio import Queue, get_running_loop
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from agentrl.chat import build_chat, build_parser
from agentrl.cli.env.play.typed import HELP, TypedWord, TypedWrong, read_typed
from agentrl.cli.env.play.view import View, described, plain, written
from agentrl.config.schema import ChatSection, RolloutSection
from agentrl.env import AgentInstance, ProgramEnv, turns_of
from agentrl.errors import AgentrlError, ConfigError, EnvError
from agentrl.preflight.reward.known_answers import find_solutions
from agentrl.preflight.reward.scripted_generator import encode_turn
from agentrl.rollout import RolloutWorker, adapt_env
from agentrl.rollout.coerce import as_observation, as_step_result
from agentrl.rollout.own_loop import OwnLoop
from agentrl.sandbox import SandboxBackend, SandboxLimits
from agentrl.testing import ByteTokenizer
from agentrl.tool import Tool
from agentrl.types import (
    FinishReason,
    Generation,
    ImageSpan,
    SamplingParams,
    Task,
    ToolCall,
    Trajectory,
)

_LONGEST = 10_000_000
_NAME = "play"
ReadLine = Callable[[], str | None]


class PlaySession:
    """The policy of one episode: turns come from lines, or from the environment's solution."""

    def __init__(
        self,
        make_env: Callable[[], Any],
        task: Task,
        *,
        read_line: ReadLine,
        view: View,
        parser: str = "hermes",
        solution: bool = False,
    ) -> None:
        """Take the parts.

        Args:
            make_env: makes a fresh environment.
            task: what is played.
            read_line: the next line without its line break, None at the end; may block.
            view: told what happens: `task`, `solution`, `turn`, `step`, `note`.
            parser: reads calls.
            solution: whether the environment's own solution plays from the start.
        """
        self._make_env = make_env
        self._task = task
        self._view = view
        self._read_line = read_line
        self._section = ChatSection(tool_parser=parser)
        tokenizer = ByteTokenizer()
        self._chat = build_chat(tokenizer, self._section, images=tokenizer.images)
        self._tools: dict[str, Tool] = {}
        self._solution: list[str | ToolCall] | None = None
        self._said = 0
        self._refused: ConfigError | None = None
        self._solving = solution
        self._lines: Queue[str | None] | None = None
        self._wanted = threading.Semaphore(0)

    async def play(
        self,
        section: RolloutSection,
        *,
        tools: Sequence[Tool] = (),
        backend: SandboxBackend | None = None,
        limits: SandboxLimits | None = None,
        grade: Any = None,
    ) -> Trajectory:
        """Play to the end, or until the input ends; gives the last row of the rollout.

        Args:
            section: the limits of a run, of which those in tokens have no effect.
            tools: of the config.
            backend: makes sandboxes.
            limits: of each of them.
            grade: the reward functions of a run.

        Raises:
            ConfigError: the environment asks for its turns itself.
        """
        lifted = {"max_turn_tokens": _LONGEST, "max_response_tokens": 2 * _LONGEST}
        lifted |= {"max_context_tokens": 4 * _LONGEST, "retries": 0}
        self._tools = {tool.name: tool for tool in tools}
        worker = RolloutWorker(
            generator=self,
            chat=self._chat,
            parser=build_parser(str(self._section.tool_parser)),
            make_env=self._watched,
            tools=tools,
            sandboxes=backend,
            sandbox_limits=limits,
            section=section.model_copy(update=lifted),
            grade=grade,
            grade_group=grade.group if grade is not None else None,
        )
        sampling = SamplingParams(
            max_tokens=_LONGEST, stop_token_ids=self._chat.stop_token_ids, temperature=1.0
        )
        group = await worker.run_group(self._task, group_id=_NAME, n=1, sampling=sampling, seed=0)
        if self._refused is not None:
            raise self._refused
        return group.trajectories[-1]

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session_id: str,
        images: Sequence[ImageSpan] = (),
    ) -> Generation:
        """The turn that is typed; at the end of the input one that ends the rollout."""
        turn = await self._turn()
        left = turn is None
        ids = encode_turn(turn or "", self._chat, self._section)
        return Generation(
            ids=ids,
            log_probs=(-1.0,) * len(ids),
            finish_reason=FinishReason.ABORT if left else FinishReason.STOP,
            policy_versions=(0,) * len(ids),
        )

    async def end_session(self, session_id: str) -> None:
        """Forget nothing: no state is kept for a session."""

    def _watched(self) -> AgentInstance:
        """A fresh environment that tells the view what it does."""
        env = adapt_env(self._make_env())
        if isinstance(env, OwnLoop | ProgramEnv):
            self._refused = ConfigError(
                f"env play: {type(env).__name__} asks for its turns itself, so none can be typed; "
                "see one with agentrl rollout"
            )
            raise self._refused
        reset, step = env.reset, env.step

        @wraps(reset)
        async def watched_reset(task: Task) -> Any:
            value = await reset(task)
            try:
                observation = as_observation(value)
            except EnvError:
                return value  # the loop says what is wrong with it
            self._tools |= {tool.name: tool for tool in observation.tools}
            prompt = plain(observation.content)
            self._view("task", id=task.id, split=task.split, prompt=prompt, tools=self._schemas())
            return value

        @wraps(step)
        async def watched_step(action: Any) -> Any:
            results = [
                {"name": result.name, "status": str(result.status), "text": result.text}
                for result in action.tool_results
            ]
            self._view(
                "turn", turn=action.turn, text=action.text, results=results, last=action.last
            )
            value = await step(action)
            try:
                result = as_step_result(value)
            except EnvError:
                return value
            self._tools |= {tool.name: tool for tool in result.tools}
            self._view(
                "step",
                rewards=result.rewards,
                scores=result.scores,
                parts=dict(result.reward_parts),
                feedback=plain(result.environment_feedback),
                history=None if result.history is None else plain(result.history),
                done=result.done,
            )
            return value

        for name, method in {"reset": watched_reset, "step": watched_step}.items():
            setattr(env, name, method)
        return env

    def _schemas(self) -> list[dict[str, Any]]:
        return [tool.schema()["function"] for tool in self._tools.values()]

    async def _turn(self) -> str | ToolCall | None:
        """The next turn; None where the player leaves."""
        while True:
            if self._solving:
                turn = await self._next_of_solution()
                if turn is not None:
                    self._view("solution", said=written(turn))
                    return turn
                self._solving = False
            line = await self._line()
            if line is None:
                return None
            try:
                typed = read_typed(line, self._tools)
            except TypedWrong as wrong:
                self._view("note", text=str(wrong))
                continue
            if not isinstance(typed, TypedWord):
                return typed
            if typed.name == "quit":
                return None
            if typed.name == "solution":
                self._solving = True
            else:
                self._view(
                    "note", text=HELP if typed.name == "help" else described(self._schemas())
                )

    async def _next_of_solution(self) -> str | ToolCall | None:
        if self._solution is None:
            self._solution = []
            try:
                offered = tuple(self._tools.values())
                found = await find_solutions(self._make_env, [self._task], offered)
            except AgentrlError as error:
                self._view("note", text=str(error))
                return None
            self._solution.extend(turns_of(found.get(self._task.id)) or ())
            if not self._solution:
                self._view("note", text="the environment gives no solution to this task")
        if not self._solution:
            return None
        self._said += 1  # the last turn repeats
        return self._solution[min(self._said, len(self._solution)) - 1]

    async def _line(self) -> str | None:
        """A line with those that it goes on in; read in a thread that nobody waits for."""
        if self._lines is None:
            self._lines = Queue()
            loop, lines = get_running_loop(), self._lines

            def read() -> None:
                while True:
                    self._wanted.acquire()
                    line = self._read_line()
                    loop.call_soon_threadsafe(lines.put_nowait, line)

            threading.Thread(target=read, daemon=True, name="typed lines").start()
        pieces: list[str] = []
        while True:
            self._wanted.release()
            line = await self._lines.get()
            if line is None or not line.endswith("\\"):
                return line if line is None or not pieces else "\n".join([*pieces, line])
            pieces.append(line[:-1])
