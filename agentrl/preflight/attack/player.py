"""Plays attacks on an environment through the real rollout loop, in a process of its own.

The loop is that of a run (chat format, parser, tools, sandboxes, limits), with a generator that
writes what the attack says, so an ending means what it means in a run. What holds up the event loop
is measured without the time in which its thread waited for a processor.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentrl.chat import build_chat, build_parser
from agentrl.config.sandboxes import sandbox_section
from agentrl.config.schema import ChatSection, DatasetSection, EnvSection, RolloutSection
from agentrl.data import load_tasks
from agentrl.env import EnvContext, Solution
from agentrl.machine.processes.child_main import ChildChannel
from agentrl.plugins.imports import resolve
from agentrl.preflight.attack.attack import NO_WALLS, AttackedTask
from agentrl.preflight.attack.library import AttackOutcome, TaskWorth, attacks
from agentrl.preflight.loop_time import held_up
from agentrl.preflight.reward.known_answers import find_solutions, spread
from agentrl.preflight.reward.scripted_generator import ScriptedGenerator, script_of
from agentrl.rollout import RolloutWorker, adapt_env
from agentrl.rollout.adapters.adapt import load_env_class
from agentrl.runtime.assembly.parts import open_sandboxes
from agentrl.runtime.assembly.tools import open_tools
from agentrl.sandbox import SandboxBackend
from agentrl.tool import Tool
from agentrl.types import SamplingParams, Task, Trajectory

_CHAT = ChatSection(tool_parser="hermes")
_LONGEST = 400_000
_ROLLOUT = RolloutSection(
    max_assistant_turns=70,
    max_user_turns=70,
    max_turn_tokens=_LONGEST,
    max_response_tokens=8 * _LONGEST,
    max_context_tokens=10 * _LONGEST,
    max_tool_tokens=4096,
    timeout_s=240.0,
    retries=0,
)
_SIGN_S = 0.5


class AttackPlayer:
    """Rollouts of attacks on a few tasks."""

    def __init__(
        self,
        make_env: Callable[[], Any],
        tasks: Sequence[Task],
        *,
        tools: Sequence[Tool] = (),
        tokenizer: Any,
        backend: SandboxBackend | None = None,
        seed: int = 0,
        reached: Path,
        throwaway: bool = False,
    ) -> None:
        """Take the parts.

        Args:
            make_env: makes a fresh environment.
            tasks: each attack is played on all of them.
            tokenizer: any; attacks are written as its ids.
            tools: of the config.
            backend: makes sandboxes; None if there are none.
            seed: of every rollout.
            reached: file that what runs outside of a sandbox makes.
            throwaway: whether programs do harm even there.
        """
        self._reached = reached
        self._host_namespace = "" if throwaway else _own_namespace()
        self._mark = f"MARK-{uuid.uuid4().hex}"
        self._make_env = make_env
        self._tasks = tasks
        self._tools = tools
        self._backend = backend
        self._seed = seed
        # The tokenizer of the attacks writes images, too; they need not be read.
        self._chat = build_chat(tokenizer, _CHAT, images=getattr(tokenizer, "images", None))
        self._attacks = {attack.name: attack for attack in attacks()}
        self._numbers = 0

    async def worths(self) -> dict[str, TaskWorth]:
        """Rewards of each task for an empty turn, and for its solution."""
        solutions = await find_solutions(self._make_env, self._tasks, self._tools)
        worths: dict[str, TaskWorth] = {}
        for task in self._tasks:
            idle, _ = await self._play(task, "")
            solution = solutions.get(task.id)
            best = None if solution is None else (await self._play(task, solution))[0].reward
            worths[task.id] = TaskWorth(idle=idle.reward, solution=best)
        return worths

    async def play(self, name: str, tasks: Sequence[Task] | None = None) -> list[AttackOutcome]:
        """The rollouts of one attack, one after the other.

        Args:
            name: of the attack.
            tasks: instead of those that it is usually played on.
        """
        attack = self._attacks[name]
        outcomes: list[AttackOutcome] = []
        for task in self._tasks if tasks is None else tasks:
            on = AttackedTask(
                task=task,
                tools=await self._offered(task),
                mark=self._mark,
                reached=str(self._reached),
                host_namespace=self._host_namespace,
            )
            for episode in attack.episodes(on):
                outcomes += await self._play_all(task, episode, on.mark if attack.leaks else "")
        return outcomes

    async def _play_all(self, task: Task, said: Solution, mark: str) -> list[AttackOutcome]:
        """One episode, in as many rollouts as it takes to send all of its words."""
        left = [said] if isinstance(said, str) else list(said)
        words = all(isinstance(turn, str) for turn in left)
        outcomes: list[AttackOutcome] = []
        while left:
            outcome, heard = await self._play(task, left, mark=mark)
            outcomes.append(outcome)
            left = left[max(1, heard) :] if words else []
        return outcomes

    async def _play(
        self, task: Task, said: Solution, *, mark: str = ""
    ) -> tuple[AttackOutcome, int]:
        """One rollout, and how many turns of the model it has."""
        self._numbers += 1
        group = f"attack/{self._numbers:05d}"
        worker = RolloutWorker(
            generator=ScriptedGenerator({group: script_of(said, self._chat, _CHAT)}),
            chat=self._chat,
            parser=build_parser(str(_CHAT.tool_parser)),
            make_env=self._make_env,
            tools=self._tools,
            sandboxes=self._backend,
            section=_ROLLOUT,
        )
        sampling = SamplingParams(
            max_tokens=_ROLLOUT.max_turn_tokens, stop_token_ids=self._chat.stop_token_ids
        )
        async with held_up() as held:
            made = await worker.run_group(
                task, group_id=group, n=1, sampling=sampling, seed=self._seed
            )
        outcome = _outcome(made.trajectories, mark, held.longest_s, unwalled=self._reached.exists())
        self._reached.unlink(missing_ok=True)
        turns = [turn for row in made.trajectories for turn in row.turns]
        return outcome, sum(turn.role == "assistant" for turn in turns)

    async def _offered(self, task: Task) -> Mapping[str, Mapping[str, Any]]:
        """Schemas of the tools of the config, and of those that the environment itself offers.

        An environment that needs a sandbox to begin offers the config's tools alone here.
        """
        tools = {tool.name: tool.parameters for tool in self._tools}
        env = adapt_env(self._make_env())
        env.context = EnvContext(tools=tuple(self._tools), seed=self._seed)
        try:
            observation = await env.reset(task)
            tools |= {tool.name: tool.parameters for tool in observation.tools}
        except Exception:  # boundary to a user's environment: an attack says what is wrong with it
            return tools
        finally:
            with contextlib.suppress(Exception):
                await env.close()
        return tools


def _outcome(
    rows: Sequence[Trajectory], mark: str, held_s: float, *, unwalled: bool
) -> AttackOutcome:
    turns = [turn for row in rows for turn in row.turns]
    row = rows[-1]
    # The first prompt is in no turn, and what a reset shows may hold what others have kept.
    shown = [row.prompt_text, *(turn.text for turn in turns if turn.role != "assistant")]
    return AttackOutcome(
        task_id=row.task_id,
        reward=row.reward,
        score=row.score,
        trusted=row.rule.reward_trusted,
        termination=str(row.termination),
        detail=row.termination_detail,
        held_s=held_s,
        leaked=bool(mark) and any(mark in text for text in shown),
        unwalled=unwalled or any(NO_WALLS in text for text in shown),
    )


def _own_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def serve(channel: ChildChannel) -> None:
    """Play attacks by name until the parent closes the channel; `ChildProcess` calls it."""
    channel.end_with_parent()
    asyncio.run(_serve(channel))


async def _serve(channel: ChildChannel) -> None:
    asked = channel.receive().head
    base = Path(asked["base"])
    section = EnvSection.model_validate(asked["env"])
    make = load_env_class(section.target, base=base)
    dataset = DatasetSection.model_validate(asked["dataset"])
    loaded = load_tasks(dataset, base=base)
    tasks = spread(loaded, asked["tasks"])
    known = {task.id for task in tasks}
    further = spread([task for task in loaded if task.id not in known], asked["more_tasks"])
    async with contextlib.AsyncExitStack() as stack:
        signs = asyncio.create_task(_give_signs(channel))
        stack.callback(signs.cancel)
        backend = None
        if asked["sandbox"] is not None:
            backend = await open_sandboxes(sandbox_section(**asked["sandbox"]), base=base)
            stack.push_async_callback(backend.close)
        tools = await stack.enter_async_context(open_tools(section, base=base))
        player = AttackPlayer(
            lambda: make(**section.args),
            tasks,
            tools=tools,
            # By its import string: no part of a run imports what is for tests.
            tokenizer=resolve(asked["tokenizer"])(),
            backend=backend,
            seed=asked["seed"],
            reached=Path(asked["reached"]),
            throwaway=asked["throwaway"],
        )
        channel.send(await _worths(player))
        while True:
            wanted = (await asyncio.to_thread(channel.receive)).head
            if "worths" in wanted:
                channel.send(await _worths(player))
                continue
            outcomes = await player.play(wanted["attack"], further if wanted["more"] else None)
            channel.send({"outcomes": [asdict(outcome) for outcome in outcomes]})


async def _worths(player: AttackPlayer) -> dict[str, Any]:
    worths = await player.worths()
    return {"worths": {name: asdict(worth) for name, worth in worths.items()}}


async def _give_signs(channel: ChildChannel) -> None:
    """Send a sign of life while the event loop runs."""
    while True:
        channel.send({"alive": True})
        await asyncio.sleep(_SIGN_S)
