"""`RolloutWorker`: the rollouts of one task, their parts, their retries and their cleaning up.

Rollouts of a group run as coroutines of one task group. Each has an environment, a session with
the engine and, once something asks for it, a sandbox; all three are released whatever happens,
also when the run is cancelled. A rollout that infrastructure broke is tried again on fresh parts
and otherwise kept as what it is: a failed rollout, without a reward.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from agentrl.config.schema import RolloutSection
from agentrl.engine import Generator
from agentrl.env import AgentInstance, EnvContext, asked
from agentrl.errors import ConfigError
from agentrl.plugins.own_threads import keep_pool_free
from agentrl.plugins.user_code import user_code
from agentrl.rollout.adapters.adapt import adapt_env, make_dict_env
from agentrl.rollout.adapters.declared_scores import declares_scores
from agentrl.rollout.endings import RolloutEnded, crash
from agentrl.rollout.limits import RolloutLimits
from agentrl.rollout.long_texts import LongTexts
from agentrl.rollout.loop import ToolAgentLoop
from agentrl.rollout.own_loop import OwnLoop, RolloutLoop
from agentrl.rollout.prompts import PromptCache
from agentrl.rollout.records import LoopParts, Rollout
from agentrl.rollout.sandbox import SharedSandbox
from agentrl.rollout.sandbox_use import SandboxUse
from agentrl.rollout.seeds import rollout_seed
from agentrl.rollout.trajectories import (
    Grade,
    GradeGroup,
    graded,
    graded_group,
    trajectories,
    with_scores,
    with_usage,
)
from agentrl.rollout.under_way.effort import CancelledWork, Effort
from agentrl.rollout.under_way.in_flight import InFlight, WaitsFor
from agentrl.rollout.under_way.release import close_all, to_the_end
from agentrl.sandbox import SandboxBackend, SandboxLimits
from agentrl.tool import Tool
from agentrl.types import Message, SamplingParams, Task, Termination, Trajectory, TrajectoryGroup
from agentrl.types.usage import counting_served

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat, ToolCallParser

logger = logging.getLogger(__name__)


class RolloutWorker:
    """Rolls tasks out; one worker serves any number of groups at once."""

    def __init__(
        self,
        *,
        generator: Generator,
        chat: ChatFormat,
        parser: ToolCallParser | None,
        make_env: Callable[[], Any],
        tools: Sequence[Tool] = (),
        sandboxes: SandboxBackend | None = None,
        sandbox_limits: SandboxLimits | None = None,
        section: RolloutSection,
        grade: Grade | None = None,
        grade_group: GradeGroup | None = None,
    ) -> None:
        """Take the parts.

        Args:
            generator: samples turns.
            chat: messages to ids and back.
            parser: finds tool calls; None if the environment reads the text itself.
            make_env: a fresh environment, once per attempt; goes through `adapt_env`.
            tools: offered in every rollout, beside those of the environment.
            sandboxes: makes sandboxes; None if there are none.
            sandbox_limits: of every sandbox.
            section: the limits of the loop.
            grade: gives finished rollouts their reward; None leaves it to the environment.
            grade_group: adds to the rewards of a group when its last rollout has ended.

        Raises:
            ConfigError: two tools share a name.
        """
        by_name = {tool.name: tool for tool in tools}
        if len(by_name) != len(tools):
            twice = [name for name, n in Counter(tool.name for tool in tools).items() if n > 1]
            raise ConfigError(f"env.tools names the tool {twice[0]!r} twice")
        frame = chat.turn_delta([Message(role="user", content="")], ended=False)
        self._parts = LoopParts(
            generator=generator,
            chat=chat,
            parser=parser,
            tools=by_name,
            limits=RolloutLimits.of(section, delta_overhead=len(frame)),
            long_texts=LongTexts(),
        )
        self._make_env = make_env
        self._declared = False
        self._sandboxes = sandboxes
        self._sandbox_limits = sandbox_limits or SandboxLimits()
        self._retries = section.retries
        self._grade, self._grade_group = grade, grade_group
        self.retried: Counter[Termination] = Counter()
        """Attempts that were thrown away and made again, by what had ended them."""
        self.cancelled = CancelledWork()
        """What the groups had cost that were cancelled."""
        self.in_flight = InFlight()
        """Rollouts that have begun and not ended."""

    async def run_group(
        self, task: Task, *, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> TrajectoryGroup:
        """Roll one task out `n` times.

        Args:
            task: what to do.
            group_id: unique in the run; rollouts are called `group_id/index`.
            n: rollouts.
            sampling: how turns are sampled; each has a seed of its own, and limits beside these.
            seed: with the task and the sample index, the source of all randomness.

        Returns:
            The rows of all `n` rollouts in order of their index, failed ones included. Never
            raises for a failed rollout; on cancellation everything is released first.
        """
        keep_pool_free()
        prompts = PromptCache(self._parts.chat, self._parts.long_texts)
        names = [f"{group_id}/{index}" for index in range(n)]
        efforts = [Effort(self.in_flight.begin(name, task.id)) for name in names]
        try:
            async with asyncio.TaskGroup() as group:
                running = [
                    group.create_task(
                        self._run_one(
                            task,
                            prompts,
                            group_id=group_id,
                            rollout_id=names[index],
                            seed=rollout_seed(seed, task.id, index),
                            sampling=sampling,
                            effort=effort,
                        )
                    )
                    for index, effort in enumerate(efforts)
                ]
            if self._grade_group is not None:
                self.in_flight.hold(effort.activity for effort in efforts)
            rollouts = await graded_group(
                self._grade_group, task, [one.result() for one in running], retries=self._retries
            )
        except asyncio.CancelledError:
            self.cancelled = self.cancelled.plus(efforts)
            raise
        except BaseExceptionGroup as failed:
            # A failed rollout never raises, so this is a broken invariant: show it bare.
            raise failed.exceptions[0] from failed
        finally:
            for name in names:
                self.in_flight.end(name)
        rows = with_scores(rollouts, declared=self._declared)
        return TrajectoryGroup(group_id=group_id, task_id=task.id, trajectories=rows)

    async def _run_one(
        self,
        task: Task,
        prompts: PromptCache,
        *,
        group_id: str,
        rollout_id: str,
        seed: int,
        sampling: SamplingParams,
        effort: Effort,
    ) -> list[Trajectory]:
        attempt = 0
        use = SandboxUse()
        while True:
            session_id = rollout_id if attempt == 0 else f"{rollout_id}#{attempt}"
            with counting_served() as spent:
                rollout = await self._attempt(
                    task, prompts, session_id, rollout_id, seed, sampling, use, effort
                )
                rows = trajectories(task, rollout, group_id=group_id, rollout_id=rollout_id)
                effort.activity.wait(WaitsFor.GRADER)
                rows = await graded(self._grade, task, rows)
            use.served(spent)
            ending, rule = rows[-1].termination, rows[-1].rule
            again = rule.retried and attempt < self._retries
            if not rule.reward_trusted:
                logger.log(
                    logging.INFO if ending is Termination.NOT_JUDGED else logging.WARNING,
                    "rollout %s: %s%s: %s",
                    rollout_id,
                    ending,
                    " (trying again)" if again else "",
                    rows[-1].termination_detail,
                )
            if not again:
                self.in_flight.end(rollout_id)
                return with_usage(rows, use.usage())
            self.retried[ending] += 1
            use.retried(
                ending,
                tokens=sum(row.num_action_tokens for row in rows),
                seconds=rows[-1].duration_s,
            )
            attempt += 1

    async def _attempt(
        self,
        task: Task,
        prompts: PromptCache,
        session_id: str,
        rollout_id: str,
        seed: int,
        sampling: SamplingParams,
        use: SandboxUse,
        effort: Effort,
    ) -> Rollout:
        sandbox = SharedSandbox(
            self._sandboxes,
            self._sandbox_limits,
            open_timeout_s=self._parts.limits.env_timeout_s,
            use=use,
        )
        effort.activity.attempt(session_id)
        limit_s = self._parts.limits.env_timeout_s
        env: AgentInstance | None = None
        tools: dict[str, Tool] = {}
        try:
            try:
                with user_code(limit_s=limit_s, who="the constructor"):
                    for name, tool in self._parts.tools.items():
                        tools[name] = tool.fresh()
                    env = self._new_env()
                    self._declared = declares_scores(env)
                env.context = EnvContext(
                    seed=seed,
                    rollout_id=rollout_id,
                    tools=tuple(tools.values()),
                    open_sandbox=sandbox.open,
                    new_sandbox=sandbox.fresh,
                    render=self._parts.chat.render_text,
                    sampling=sampling,
                )
            except Exception as error:  # recording boundary: a constructor may raise anything
                ending: RolloutEnded = crash("making the environment", error)
                return Rollout(ending=ending.reached)
            common: Any = {
                "sandbox": sandbox,
                "sampling": sampling,
                "seed": seed,
                "session_id": session_id,
                "activity": effort.activity,
            }
            loop: RolloutLoop
            if isinstance(env, OwnLoop):
                loop = env.loop(self._parts, **common)
            else:
                loop = ToolAgentLoop(self._parts, env=env, tools=tools, prompts=prompts, **common)
            effort.begin(loop)
            return await loop.run(task)
        finally:
            await self._release(env, tools.values(), sandbox, session_id)

    def _new_env(self) -> AgentInstance:
        make = self._make_env
        if inspect.isclass(make) and not issubclass(make, AgentInstance):
            return make_dict_env(make)
        return adapt_env(make())

    async def _release(
        self,
        env: AgentInstance | None,
        tools: Iterable[Tool],
        sandbox: SharedSandbox,
        session_id: str,
    ) -> None:
        """Close everything, to the end, even if this task is being cancelled."""
        limit_s = self._parts.limits.env_timeout_s
        steps: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        if env is not None and type(env).close is not AgentInstance.close:
            steps.append(("env.close", partial(asked, env.close)))
        for tool in tools:
            # What a tool left in the sandbox is ended while there is one.
            if type(tool).close is not Tool.close:
                steps.append((f"{tool.name}.close", tool.close))
        if sandbox.opened:
            steps.append(("sandbox.close", sandbox.close))
        steps.append(("end_session", lambda: self._parts.generator.end_session(session_id)))
        await to_the_end(close_all(steps, session_id, limit_s))
