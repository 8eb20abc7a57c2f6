"""`ToolAgentLoop`: one rollout as a state machine, one method per state.

    PENDING --reset, first prompt--> GENERATING --sampled turn--> PROCESSING_TOOLS
                                         ^                            |  calls, step
                                         +--- results and feedback ---+
                                                                      +--> TERMINATED

The loop touches ids only to append them: sampled ids come from the engine, the others from the
chat format, and nothing is ever encoded again. A limit that ends the rollout is known before the
last `step`, which receives it (`Action.last`). Everything awaited has a time limit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.chat.parser import read_text
from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.errors import ChatError, EngineError, EnvError
from agentrl.images import without_images, words
from agentrl.rollout.calls import CallRunner
from agentrl.rollout.clock import RolloutClock, in_ticks
from agentrl.rollout.coerce import MOST_NAMES, as_observation, as_step_result, sampling_overrides
from agentrl.rollout.endings import RolloutEnded, crash
from agentrl.rollout.feedback import Delta, DeltaBuilder
from agentrl.rollout.guard import EnvGuard
from agentrl.rollout.history.of_loop import LoopHistory
from agentrl.rollout.limits import Reached, RolloutProgress
from agentrl.rollout.prompts import Prompt, PromptCache, characters_of
from agentrl.rollout.recorder import Recorder
from agentrl.rollout.records import AgentState, LoopParts, Rollout, SampledTurn
from agentrl.rollout.sandbox import SharedSandbox
from agentrl.rollout.seeds import turn_seed
from agentrl.rollout.under_way.in_flight import Activity
from agentrl.tool import Tool, ToolContext
from agentrl.types import (
    FinishReason,
    Generation,
    Message,
    Role,
    SamplingParams,
    Task,
    Termination,
    ToolResult,
)
from agentrl.types.explanation import later
from agentrl.types.thoughts import opening_before

_NO_MESSAGES = (
    "step: history in a rollout whose Observation has raw=True; its text has no messages, so leave "
    "raw out of the Observation, or history out of the step"
)
_NO_IMAGES = (
    "images in a rollout whose environment says wants_history = True; histories are of text only "
    "yet, so leave wants_history out, or describe the images in words"
)
_NOT_NOTED = (
    "step: history, but the class of the environment does not say wants_history = True; set it, so "
    "that the turns are kept which a history may repeat"
)


class ToolAgentLoop:
    """Runs one rollout; make a new one for each attempt."""

    _recorder: Recorder
    _deltas: DeltaBuilder
    _calls: CallRunner
    _rollout: ToolContext | None = None
    _history: LoopHistory | None = None
    _offered: tuple[Tool, ...]
    _own_tools: Mapping[str, Tool]
    _guard: EnvGuard
    _turn: SampledTurn

    def __init__(
        self,
        parts: LoopParts,
        *,
        env: AgentInstance,
        tools: Mapping[str, Tool],
        sandbox: SharedSandbox,
        prompts: PromptCache,
        sampling: SamplingParams,
        seed: int,
        session_id: str,
        activity: Activity,
    ) -> None:
        self._parts = parts
        self._activity = activity
        self._env = env
        self._tools = tools
        self._sandbox = sandbox
        self._prompts = prompts
        self._base = sampling
        self._seed = seed
        self._session_id = session_id
        ends = (*sampling.stop_token_ids, *parts.chat.stop_token_ids)
        self._end_ids = frozenset(ends)
        self._stop_ids = tuple(dict.fromkeys(ends))
        self._given: tuple[int, ...] = ()
        self._clock = RolloutClock(parts.limits.timeout_s)
        self._progress = RolloutProgress()
        self._overrides: Mapping[str, Any] = {}
        self._result = Rollout()
        self._seen_text = ""
        self._data: Mapping[str, Any] = {}

    @property
    def sampled_tokens(self) -> int:
        """Tokens the policy has sampled so far."""
        return sum(sum(row.mask) for row in self._result.rows)

    @property
    def elapsed_s(self) -> float:
        """Wall time since it began, or that it took."""
        return self._result.duration_s or self._clock.elapsed_s()

    async def run(self, task: Task) -> Rollout:
        """Run to the end.

        Returns:
            The rollout, whatever happened to it: failures of environment, tools, sandbox and
            engine are its ending, not exceptions.
        """
        result = self._result
        self._guard = EnvGuard(
            clock=self._clock,
            sandbox=self._sandbox,
            env_timeout_s=self._parts.limits.env_timeout_s,
            turn_limit_s=self._parts.limits.turn_limit_s,
            activity=self._activity,
        )
        state = AgentState.PENDING
        try:
            while state is not AgentState.TERMINATED:
                if state is AgentState.GENERATING:
                    state = await self._generating()
                elif state is AgentState.PROCESSING_TOOLS:
                    state = await self._processing_tools()
                else:
                    state = await self._pending(task)
        except RolloutEnded as end:  # what was awaited failed or took too long
            result.ending = end.reached
        finally:
            self._guard.watch.close()
            if self._rollout is not None:
                self._rollout.close()
        if result.rows:
            self._finish()
        result.duration_s = in_ticks(self._clock.elapsed_s())
        return result

    def _finish(self) -> None:
        """The rows of the rollout: as they grew, or those of the tree if a step changed it."""
        recorder, history, result = self._recorder, self._history, self._result
        changed = history is not None and history.changed
        if history is not None and changed:
            recorder = history.rows()
            result.requests = history.requests()
            result.extra_logs = {**history.report(), **result.extra_logs}
        if self._data:
            recorder.attach_data(self._data)
        result.rows = recorder.finish()
        if changed:
            first = result.rows[0]
            result.prompt_text = self._parts.chat.decode_raw(first.ids[: first.prompt_length])

    # -- PENDING ----------------------------------------------------------------------------

    async def _pending(self, task: Task) -> AgentState:
        """Reset the environment and take the first prompt."""
        parts = self._parts
        value = await self._guard.ask("reset", self._env.reset, task)
        try:
            observation = as_observation(value)
            tools = _merge_tools(self._tools, observation.tools)
            parts.limits.check_characters(characters_of(observation))
            prompt = await self._prompts.get(observation, tuple(tools.values()))
        except Exception as error:  # recording boundary: reset may have returned anything
            raise crash("reset", error, who=self._env.reset) from error
        self._begin(task, prompt, tools, observation)
        if reached := parts.limits.prompt_too_long(len(prompt.ids)):
            return self._end(reached)
        return AgentState.GENERATING

    def _begin(
        self, task: Task, prompt: Prompt, tools: Mapping[str, Tool], observation: Observation
    ) -> None:
        parts, raw = self._parts, observation.raw
        self._recorder = Recorder(
            prompt.ids, temperature=self._base.temperature, images=prompt.images
        )
        self._result.rows = self._recorder.rows
        self._result.prompt_text = prompt.readable
        self._seen_text = prompt.text
        if not raw:
            self._given = parts.chat.reply_prefix_ids
            self._stop_ids = tuple(dict.fromkeys((*self._stop_ids, *parts.chat.action_stop_ids)))
        self._deltas = DeltaBuilder(
            chat=parts.chat, limits=parts.limits, raw=raw, long_texts=parts.long_texts
        )
        context = self._env.context
        self._rollout = ToolContext(
            task=task, seed=self._seed, rollout_id=context.rollout_id, state=context.state
        )
        self._calls = CallRunner(
            tools=tools,
            sandbox=self._sandbox,
            chat=parts.chat,
            limits=parts.limits,
            long_texts=parts.long_texts,
            watch=self._guard.watch,
            rollout=self._rollout,
        )
        self._own_tools = tools
        self._offered = tuple(tools.values())
        if self._env.wants_history and not raw:
            if prompt.images:
                raise crash("reset", EnvError(_NO_IMAGES))
            self._history = LoopHistory(parts, prompt.ids, observation.content, self._offered)
        self._progress.context_tokens = len(prompt.ids)

    # -- GENERATING -------------------------------------------------------------------------

    async def _generating(self) -> AgentState:
        """Sample one turn and record it."""
        sampling = self._sampling()
        started = time.monotonic()
        generation = await self._guard.generate(
            self._parts.generator,
            self._recorder.ids,
            sampling,
            self._session_id,
            self._recorder.images,
        )
        self._turn = turn = self._read(generation)
        turn.duration_s = in_ticks(time.monotonic() - started)
        try:
            self._recorder.add_assistant(
                generation,
                text=turn.sampled_text,
                tool_calls=turn.calls,
                duration_s=turn.duration_s,
            )
        except EngineError as error:
            raise crash("engine", error) from error
        if self._history is not None:
            self._history.add(turn)
        self._progress.assistant_turns += 1
        self._count()
        if generation.finish_reason is FinishReason.ABORT:
            detail = "the engine aborted the turn"
            return self._end(Reached(termination=Termination.ABORTED, detail=detail))
        return AgentState.PROCESSING_TOOLS

    def _sampling(self) -> SamplingParams:
        base, overrides = self._base, self._overrides
        temperature = overrides.get("temperature", base.temperature)
        if temperature != self._recorder.temperature:
            # The trainer divides the logits of a row by one temperature.
            self._recorder.start_row(temperature=temperature)
        most = overrides.get("max_tokens", base.max_tokens)
        return SamplingParams(
            temperature=temperature,
            top_p=overrides.get("top_p", base.top_p),
            max_tokens=min(most, self._parts.limits.turn_budget(self._progress)),
            stop_token_ids=self._stop_ids,
            seed=turn_seed(self._seed, self._progress.assistant_turns),
        )

    def _read(self, generation: Generation) -> SampledTurn:
        parts = self._parts
        ids = generation.ids
        stopped = ids[-1] in self._end_ids
        body = ids[:-1] if stopped else ids
        given = self._given
        begun = self._thought_begun()
        if parts.parser is None:
            parsed = read_text(body, parts.chat, given=given, begun=begun)
        else:
            parsed = parts.parser.parse(
                body,
                parts.chat,
                given=given,
                tools=self._offered,
                turn=self._progress.assistant_turns,
                begun=begun,
            )
        raw_text = parts.chat.decode_raw(ids) if self._env.wants_observation_text else ""
        return SampledTurn(
            text=parsed.text,
            thought=parsed.thought,
            said=parsed.said,
            sampled_text=parts.chat.decode(body) if given else parsed.text,
            raw_text=raw_text,
            calls=parsed.calls,
            stop_id=ids[-1] if stopped else None,
            truncated=ids[-1] not in self._stop_ids
            and generation.finish_reason is FinishReason.LENGTH,
            generation=generation,
            temperature=self._recorder.temperature,
        )

    def _thought_begun(self) -> str:
        """The mark of the thought that the prompt of this turn has opened; empty for none."""
        if not self._deltas.raw:
            return self._parts.chat.thought_opening
        return opening_before(self._parts.chat.decode_raw(self._recorder.ids[-24:]))

    # -- PROCESSING_TOOLS -------------------------------------------------------------------

    async def _processing_tools(self) -> AgentState:
        """Run the calls, ask the environment to judge, append what comes back."""
        turn, limits, progress = self._turn, self._parts.limits, self._progress
        started = time.monotonic()
        results = await self._run_calls(turn)
        delta = await self._show(results, turn)
        shown = 0 if delta is None else len(delta.ids)
        reached = limits.reached(progress, result_tokens=shown)
        if reached is None and self._clock.left_s() <= 0:
            reached = self._clock.overrun()
        left = limits.context_left(progress, result_tokens=shown)
        step = await self._step(turn, results, last=reached is not None, context_left=left)
        duration_s = in_ticks(time.monotonic() - started)
        feedback = step.environment_feedback
        if step.done:
            reached = _done(step, turn)
        elif step.history is not None:
            if left < 0:
                reached = None  # the context alone is full, and a shorter history makes room
        elif reached is None and not results and not feedback:
            reached = self._silence(turn)
        if reached is not None:
            self._show_rest(results, feedback, duration_s)
            self._data = step.data
            return self._end(reached)
        try:
            self._overrides = sampling_overrides(step.sampling_params, self._base)
            if step.tools:
                self._own_tools = _merge_tools(self._own_tools, step.tools)
                self._offer(_merge_tools(self._calls.tools, step.tools))
            if step.history is not None:
                return await self._change_history(step, results, duration_s)
            if feedback:
                room = limits.delta_room(progress)
                delta = await self._deltas.build(
                    results,
                    feedback,
                    stop_id=turn.stop_id,
                    room=room,
                    turn=progress.assistant_turns,
                )
            if self._history is not None and delta is not None and delta.images:
                raise EnvError(_NO_IMAGES)
        except Exception as error:  # recording boundary: feedback and overrides may be anything
            raise crash("step", error) from error
        if delta is None:
            self._show_rest(results, feedback, duration_s)
            return self._end(limits.no_room(progress))
        if self._history is not None:
            delta.duration_s = duration_s
            self._history.add(delta)
        self._recorder.add_environment(
            delta.ids,
            role=delta.role,
            text=delta.text,
            tool_results=without_images(results),
            duration_s=duration_s,
            images=delta.images,
        )
        progress.user_turns += 1
        self._count()
        if self._env.wants_observation_text:
            self._seen_text += turn.raw_text + self._parts.chat.decode_raw(delta.ids)
        return AgentState.GENERATING

    async def _run_calls(self, turn: SampledTurn) -> tuple[ToolResult, ...]:
        calls = turn.calls
        parser = self._parts.parser
        if calls and parser is not None and not parser.names_tools:
            # The parser's calls carry no tool name of the model's choosing: without a tool of that
            # name the environment itself runs them.
            calls = tuple(call for call in calls if call.name in self._calls.tools)
        if not calls:
            return ()
        turn.answered = calls
        return await self._guard.run(self._calls, calls)

    async def _show(self, results: Sequence[ToolResult], turn: SampledTurn) -> Delta | None:
        """The results as the model will see them if the environment has nothing to add."""
        if not results:
            return None
        try:
            return await self._deltas.of_results(
                results, stop_id=turn.stop_id, turn=self._progress.assistant_turns
            )
        except (ChatError, EnvError) as error:
            raise crash("tool results", error) from error

    async def _step(
        self,
        turn: SampledTurn,
        results: tuple[ToolResult, ...],
        *,
        last: bool,
        context_left: int,
    ) -> StepResult:
        wants_text = self._env.wants_observation_text
        action = Action(
            text=turn.said,
            thought=turn.thought,
            whole_text=turn.text,
            tool_calls=turn.calls,
            tool_results=results,
            turn=self._progress.assistant_turns - 1,
            truncated=turn.truncated,
            last=last,
            context_left=context_left,
            history=() if self._history is None else self._history.messages(results),
            observation_text=self._seen_text if wants_text else "",
            raw_text=turn.raw_text,
        )
        value = await self._guard.ask("step", self._env.step, action)
        try:
            step = as_step_result(value)
        except Exception as error:  # recording boundary: step may have returned anything
            raise crash("step", error, who=self._env.step) from error
        self._recorder.set_reward(step.rewards)
        turn.reward = step.rewards
        result = self._result
        result.reward += step.rewards
        if step.scores is not None:
            result.score = step.scores
        result.extra_logs.update(step.extra_logs)
        result.explanation = later(result.explanation, step.explanation)
        for name, value in step.reward_parts.items():
            result.reward_parts[name] = result.reward_parts.get(name, 0.0) + value
        if max(len(result.extra_logs), len(result.reward_parts)) > MOST_NAMES:
            error = EnvError(
                f"extra_logs and reward_parts of all steps have more than {MOST_NAMES} names"
            )
            raise crash("step", error)
        return step

    def _silence(self, turn: SampledTurn) -> Reached:
        """The ending when there is no feedback for the model."""
        if not turn.truncated:
            return Reached(
                termination=Termination.NO_TOOL_CALL,
                detail="no tool ran, and the environment was neither done nor gave feedback",
            )
        return Reached(
            termination=Termination.MAX_TOKENS,
            detail=f"max_turn_tokens: the turn was cut off at {turn.tokens} tokens and the "
            "environment gave no feedback",
        )

    def _show_rest(
        self,
        results: tuple[ToolResult, ...],
        feedback: str | tuple[Message, ...],
        duration_s: float,
    ) -> None:
        """Keep what the model never got to see, as a turn without tokens."""
        text = (
            feedback
            if isinstance(feedback, str)
            else "\n".join(words(m.content, m.images) for m in feedback)
        )
        results = without_images(results)
        if results or text:
            unseen = _unseen(results, text, duration_s)
            if self._history is not None:
                self._history.add(unseen)
            self._recorder.add_environment(
                (),
                role=unseen.role,
                text=text,
                tool_results=results,
                duration_s=duration_s,
            )

    async def _change_history(
        self, step: StepResult, results: tuple[ToolResult, ...], duration_s: float
    ) -> AgentState:
        """Go on behind the history that a step gave, in another row."""
        parts, progress, changes = self._parts, self._progress, self._history
        assert step.history is not None
        if changes is None:
            raise EnvError(_NO_MESSAGES if self._deltas.raw else _NOT_NOTED)
        tools = step.history_tools
        offered = self._own_tools if tools is None else _merge_tools({}, tools)
        unseen = _unseen(results, "", duration_s) if results else None
        node = await changes.change(step.history, tools, unseen)
        self._offer(offered)
        ids = node.path_ids()
        self._count()
        progress.context_tokens = len(ids)
        if reached := parts.limits.after_history(progress):
            if reached.termination is Termination.CONTEXT_FULL:
                raise EnvError(
                    f"step: history has {len(ids)} tokens, which leaves no room for an answer in "
                    f"rollout.max_context_tokens {parts.limits.max_context_tokens}; make it "
                    "shorter, and earlier: Action.context_left says how much room there is"
                )
            self._data = step.data
            return self._end(reached)
        progress.user_turns += 1
        self._recorder.start_row(ids, temperature=self._recorder.temperature)
        if self._env.wants_observation_text:
            self._seen_text = parts.chat.decode_raw(ids)
        return AgentState.GENERATING

    def _offer(self, tools: Mapping[str, Tool]) -> None:
        """Offer these tools to the next turns."""
        self._calls = replace(self._calls, tools=tools)
        self._offered = tuple(tools.values())

    # -- shared -----------------------------------------------------------------------------

    def _end(self, reached: Reached) -> AgentState:
        self._result.ending = reached
        return AgentState.TERMINATED

    def _count(self) -> None:
        returned = 0 if self._history is None else self._history.returned
        self._progress.response_tokens = self._recorder.response_tokens + returned
        self._progress.context_tokens = len(self._recorder.ids)


def _done(step: StepResult, turn: SampledTurn) -> Reached:
    """The ending an environment gave. A truncated last turn makes the rollout truncated,
    however the environment graded what there was."""
    if step.termination is Termination.ENV_DONE and turn.truncated:
        return Reached(
            termination=Termination.MAX_TOKENS,
            detail=f"max_turn_tokens: the last turn was cut off at {turn.tokens} tokens",
        )
    return Reached(termination=step.termination, detail="")


def _unseen(results: tuple[ToolResult, ...], text: str, duration_s: float) -> Delta:
    """What came back for a turn and was never shown to the model."""
    role: Role = "tool" if results else "user"
    return Delta(ids=(), role=role, text=text, results=results, duration_s=duration_s)


def _merge_tools(config: Mapping[str, Tool], offered: Sequence[Tool]) -> Mapping[str, Tool]:
    if not offered:
        return config
    tools = dict(config)
    for tool in offered:
        if tool.name in tools and tools[tool.name] is not tool:
            raise EnvError(
                f"the environment offers a tool called {tool.name!r}, but there is one already; "
                "rename it or take it out of env.tools"
            )
        tools[tool.name] = tool
    return tools
