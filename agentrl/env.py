"""The contract of an environment: one class with `reset` and `step`.

A fresh instance serves one rollout. `reset` says what the model sees first; `step` is called once
per model turn, after the tool calls of that turn have run, and says what the turn was worth and
what the model sees next. Authors raise plain exceptions: an environment that fails costs its
rollout, not the run. Tokens, masks and log-probabilities are none of its business.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

from agentrl.errors import ConfigError, EnvError
from agentrl.sandbox import MakeProtocol, Sandbox, SandboxSpec
from agentrl.tool import Tool, as_tool
from agentrl.types import (
    Explanation,
    Message,
    SamplingParams,
    Task,
    Termination,
    ToolCall,
    ToolResult,
)
from agentrl.types.thoughts import split_thought


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The first message that the model sees."""

    content: str | tuple[Message, ...]
    """Text (becomes one user message) or chat messages."""
    tools: tuple[Tool, ...] = ()
    """Tools offered in this rollout, beside those of the config. Functions and methods with a
    docstring may stand here; they become tools."""
    raw: bool = False
    """Text that goes to the tokenizer as it is, without the chat template; so does all feedback
    of this rollout. For environments that write their own markers."""

    def __post_init__(self) -> None:
        """Turn functions among the tools into tools."""
        object.__setattr__(self, "tools", tuple(map(as_tool, self.tools)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """The turn of the model that the environment has to answer."""

    text: str
    """Words of the model: the turn without its thought and its stop token, calls included."""
    thought: str = ""
    """What it thought before, without the marks `<think>` and `</think>`. A thought that `text` is
    given with is moved here; one that is not closed leaves nothing that was said."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls found in the text, malformed ones included."""
    tool_results: tuple[ToolResult, ...] = ()
    """What those calls gave, in the same order; already shown to the model."""
    turn: int = 0
    """0 for the first model turn."""
    truncated: bool = False
    """Whether the turn was truncated at its token limit."""
    last: bool = False
    """Whether the loop ends after this step whatever `done` is; grade what there is. Where only
    the context is full (`context_left`), a shorter `StepResult.history` goes on instead."""
    context_left: int = 0
    """Tokens that the context has left after the results of this turn and beyond the shortest
    feedback and answer. Negative if it is full and no other limit is reached: `last` is set, but a
    shorter `StepResult.history` makes room and goes on."""
    history: tuple[Message, ...] = ()
    """The conversation with this turn and its results, for `StepResult.history`; filled only for
    environments that ask for it with `wants_history`. Thoughts of the model are left out."""
    observation_text: str = ""
    """All text before this turn, decoded from the ids; filled only for environments that ask for
    it with `wants_observation_text`."""
    raw_text: str = ""
    """The turn with its special tokens, stop token included; filled as `observation_text` is."""
    whole_text: str = ""
    """Thought and words as they were sampled, for what judges the form of a turn; filled from
    `text` where it is not given."""

    def __post_init__(self) -> None:
        """Keep the thought out of the words, whoever made the action."""
        if not self.thought and self.whole_text in ("", self.text):  # else its maker has split it
            thought, said = split_thought(self.text)
            for name, value in {"whole_text": self.text, "thought": thought, "text": said}.items():
                object.__setattr__(self, name, value)
        elif not self.whole_text:
            object.__setattr__(self, "whole_text", self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The reward of a turn, and what comes next."""

    rewards: float = 0.0
    """Reward of this turn; the rewards of all turns are summed."""
    environment_feedback: str | tuple[Message, ...] = ""
    """What the model sees next; empty with `done`, or when tool results are enough."""
    done: bool = False
    """Whether the episode is over."""
    scores: float | None = None
    """0-1 verdict so far, for filters and evaluation; the last one given counts. In a class that
    gives scores, a rollout that a limit ends before any has the score 0; in others the score is the
    sum of the rewards."""
    extra_logs: Mapping[str, float] = field(default_factory=dict[str, float])
    """Numbers averaged into the metrics under `env/`; not the names of `agentrl.types.usage`."""
    sampling_params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Overrides for the next turn: `temperature`, `top_p`, `max_tokens`."""
    reward_parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Named parts of `rewards`, for reading."""
    explanation: Explanation | None = None
    """Reasons for the reward, for readers: the reference answer, the tests and how they ended, what
    the grader printed, why. Stored with the rollout and shown beside it, never to the model. Of
    several steps the last text given for each field counts."""
    termination: Termination = Termination.ENV_DONE
    """With `done`: why the episode is over. An environment that ends it because the model's own
    action ran too long, printed too much or used too much memory says `TOOL_TIMEOUT`,
    `OUTPUT_LIMIT` or `OOM`; nothing else is accepted."""
    tools: tuple[Tool, ...] = ()
    """Tools that can be called from the next turn on, beside those offered so far. The prompt is
    not written again, so say in `environment_feedback` what they are."""
    history: tuple[Message, ...] | None = None
    """The conversation from now on, in place of the one so far and of `environment_feedback`: a
    shorter one, an earlier point of it, or that of another agent. Turns of the model that it
    repeats, as `Action.history` has them, keep their tokens. Ends with a message of the user or a
    tool result; is taken as it is, however long. Only for classes with `wants_history`. Ignored
    with `done`, or where a limit ends the rollout."""
    history_tools: tuple[Tool, ...] | None = None
    """With `history`: tools offered in it, in place of all others, `()` for none. None takes those
    of the first prompt, to which `tools` are added."""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the last step: kept for readers, beside the data of the last tool result; JSON. The
    inspector shows text called `patch` or `diff`. Lost where no tool was called."""

    def __post_init__(self) -> None:
        """Turn functions among the tools into tools."""
        if self.tools:
            object.__setattr__(self, "tools", tuple(map(as_tool, self.tools)))
        if self.history_tools:
            object.__setattr__(self, "history_tools", tuple(map(as_tool, self.history_tools)))


def _no_sandbox(spec: SandboxSpec | None = None) -> Awaitable[Sandbox]:
    raise EnvError("this environment asked for a sandbox, but the config has no 'sandbox' section")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvContext:
    """Everything a rollout gives its environment before `reset`."""

    seed: int = 0
    """The same for the same task and sample index in every run with the same `run.seed`."""
    rollout_id: str = ""
    """Id of the rollout, for logs."""
    tools: Sequence[Tool] = ()
    """Tools named in the config."""
    open_sandbox: Callable[..., Awaitable[Sandbox]] = _no_sandbox
    """`open_sandbox(spec=None)`: the sandbox of this rollout, made on the first call and
    shared with its tools; closed when the rollout ends. Only the first call may say what it wants,
    so an environment that wants something opens it in `reset`."""
    new_sandbox: Callable[..., Awaitable[Sandbox]] = _no_sandbox
    """`new_sandbox(spec=None)`: another sandbox, to grade in; nothing of the rollout has
    touched it. Closed by the caller, or when the rollout ends."""
    render: Callable[[Sequence[Message]], str] = field(
        default=lambda messages: "".join(message.content for message in messages)
    )
    """Messages as the text of the model's chat template, with the generation prompt."""
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """`env.args` of the config, for environments that do not take them in their constructor."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """How turns are sampled unless `StepResult.sampling_params` overrides it."""
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    """Kept between the calls of this rollout's tools, which have it as `ToolContext.state`."""


Solution = str | Sequence[str | ToolCall]
"""A whole episode of the model: one text, or its turns."""


def turns_of(solution: object) -> tuple[str | ToolCall, ...] | None:
    """The turns of what `AgentInstance.solution` gave; None where none is known.

    Raises:
        EnvError: it is no solution.
    """
    if solution is None or isinstance(solution, str):
        return None if solution is None else (solution,)
    given: Any = solution
    turns = [turn for turn in given if isinstance(turn, str | ToolCall)] if _is_list(given) else []
    if not _is_list(given) or len(turns) != len(given):
        raise EnvError(
            f"solution gave {type(given).__name__}, expected text, or a sequence of texts and "
            "ToolCalls, or None"
        )
    return tuple(turns)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence)


class AgentInstance(ABC):
    """One episode. Subclass it, write `reset` and `step`, and check it with `agentrl env check`.

    Example:
        >>> class Echo(AgentInstance):
        ...     async def reset(self, task):
        ...         return Observation(content=f"Say {task.label}")
        ...     async def step(self, action):
        ...         return StepResult(rewards=float(action.text == self.label), done=True)
    """

    tools: Sequence[Tool | Callable[..., Any]] = ()
    """Tools of every rollout, beside those of the config and of `reset`: functions with a
    docstring, methods of this class among them (`tools = [run_sql]` below `async def run_sql(self,
    ...)`), which are called on the instance of the rollout."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Have `reset` offer the tools of the class."""
        super().__init_subclass__(**kwargs)
        if {"tools", "reset"} & vars(cls).keys() and _class_tools(cls):
            cls.reset = _offering(cls.reset)

    @functools.cached_property
    def context(self) -> EnvContext:
        """Facts of the rollout; the worker sets them before `reset`."""
        return EnvContext()

    wants_observation_text: bool = False
    """Whether `Action.observation_text` is filled; decoding everything each turn costs time."""

    wants_history: bool = False
    """Whether `Action.history` is filled and a step may give a `history`; turns are then kept."""

    reward_range: tuple[float, float] | None = None
    """Bounds of the sum of an episode's rewards, for `agentrl env check`; None promises none."""

    @abstractmethod
    async def reset(self, task: Task) -> Observation:
        """Begin the episode for `task`."""

    @abstractmethod
    async def step(self, action: Action) -> StepResult:
        """Judge one turn of the model."""

    def solution(self, task: Task) -> Solution | None:
        """Answer of a model that solves `task`, so that `agentrl preflight` sees it rewarded.

        Called on a fresh instance, before or without `reset`; nothing of it is ever shown to the
        model or trained on.

        Returns:
            Text, or several turns in order, of which a `ToolCall` stands for a turn that makes
            this call (only `name` and `arguments` count), written as `chat.tool_parser` reads it.
            The last turn is repeated. None, the default, says that no solution is known.
        """
        return None

    async def close(self) -> None:  # noqa: B027 - optional by design
        """Free what `reset` and `step` hold. Always called once, even after an error."""


def _class_tools(cls: type[AgentInstance]) -> Sequence[Any]:
    """The tools of a class, checked; none where a class has something else of this name.

    Raises:
        ConfigError: no list, or what is no tool in it.
    """
    tools: Any = cls.tools
    if callable(tools) or isinstance(tools, property | functools.cached_property):
        return ()
    if not isinstance(tools, list | tuple):
        raise ConfigError(
            f"{cls.__name__}.tools is {ascii(tools)[:80]}; expected a list of functions, methods "
            "and Tools, as [run_sql]"
        )
    found: list[Any] = list(tools)  # pyright: ignore[reportUnknownArgumentType]
    for value in found:
        as_tool(MethodType(value, object()) if _is_method(cls, value) else value)
    return found


def _is_method(cls: type, value: Any) -> bool:
    name = getattr(value, "__name__", "")
    return inspect.isfunction(value) and any(vars(c).get(name) is value for c in cls.__mro__)


def _offering(reset: Callable[..., Any]) -> Callable[..., Any]:
    """`reset` of a class, whose observation offers the tools of the class as well."""
    if not inspect.iscoroutinefunction(reset):
        return reset  # refused where it is asked

    @functools.wraps(reset)
    async def offering(self: AgentInstance, task: Task) -> Any:
        value: Any = await reset(self, task)
        if isinstance(value, str | tuple):
            value = Observation(content=value)  # pyright: ignore[reportUnknownArgumentType]
        if not isinstance(value, Observation):
            raise EnvError(
                f"reset returned {type(value).__name__}; a class that has tools returns text, "
                "messages or an Observation"
            )
        known = {tool.name for tool in value.tools}
        # The `reset` of a parent has offered its own.
        more = [tool for tool in map(as_tool, _own_tools(self)) if tool.name not in known]
        return dataclasses.replace(value, tools=(*value.tools, *more))

    return offering


def _own_tools(env: AgentInstance) -> Iterator[Any]:
    """The tools of the class, its methods bound to the instance, as a subclass has them."""
    for value in type(env).tools:
        method = _is_method(type(env), value)
        yield getattr(env, value.__name__) if method else value


async def asked(method: Callable[..., Any], *given: Any) -> Any:
    """Await a method of an environment.

    Raises:
        EnvError: it is no coroutine, and would hold up every other rollout while it runs.
    """
    found: Any = method(*given)
    if not inspect.isawaitable(found):
        raise EnvError(
            f"{getattr(method, '__qualname__', method)} is no coroutine: it returned "
            f"{type(found).__name__} at once; write it as `async def`, and await what takes time"
        )
    return await found


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEndpoint:
    """The model of one rollout, as an HTTP server for a program that asks for its turns."""

    make_protocol: MakeProtocol
    """Answers a connection; for `Sandbox.listen`, which gives the server its address."""
    key: str
    """Names the rollout: sent as the API key, or as the path `/s/KEY` before the wire's own."""
    model: str
    """Name of the model that requests ask for."""
    turns: Callable[[], int]
    """Turns that were sampled so far."""
    context_tokens: int
    """Most tokens of a conversation, `rollout.max_context_tokens`."""
    reply_tokens: int
    """Most tokens of one turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedProgram:
    """The end of a program that asked for the turns of a rollout."""

    termination: Termination = Termination.ENV_DONE
    """`ENV_DONE` where it ended by itself; else what of the model's doing ended it, as in
    `StepResult.termination`."""
    detail: str = ""
    """Why, in words."""


class ProgramEnv(AgentInstance):
    """An environment whose turns are asked for by a program, and not by the loop.

    A rollout is `reset`, then `play`, then one `step` that judges what there is: its action has the
    last words of the model and `last`. So all of it but `play` can be looked at without a model.
    """

    @abstractmethod
    async def play(self, endpoint: ModelEndpoint) -> PlayedProgram:
        """Run the program until it ends; cancelled at a limit of the rollout.

        Raises:
            SandboxError: the sandbox failed.
            Exception: anything else is a crash of the environment, which is never laid to the
                model, so an end that the model can cause is returned instead.
        """
