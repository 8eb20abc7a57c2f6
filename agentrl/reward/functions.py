"""The reward functions of a config: called once a rollout, where and when it ends."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentrl.config import resolve_callable
from agentrl.config.schema import RewardSection
from agentrl.errors import ConfigError, GraderError
from agentrl.reward.other_trainers import adapted
from agentrl.served.waiting import limited
from agentrl.types import Task, Trajectory

ENV_PART = "env"
"""Name under which `reward_parts` holds the environment's own reward, before its weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Function:
    name: str
    target: str
    weight: float
    call: Callable[..., Any]
    args: Mapping[str, Any]
    """Keyword arguments, `rows` not among them."""
    wants_rows: bool


def load_reward_functions(
    section: RewardSection, *, base: Path | None, timeout_s: float
) -> RewardFunctions | None:
    """The functions of a config, resolved now; None if the environment's reward is all there is.

    Args:
        section: names them.
        base: folder that relative files start from.
        timeout_s: limit of one call; the wait in line for a served model does not count.

    Raises:
        ConfigError: an import string that does not resolve, or a signature that does not fit.
    """
    if not section.functions and section.env_weight == 1.0:
        return None
    functions = []
    for name, item in section.functions.items():
        call = resolve_callable(item.target, base=base)
        where = f"reward.functions.{name}: {item.target!r}"
        if name == ENV_PART:
            raise ConfigError(f"{where}: {ENV_PART!r} is the environment's own part; rename it")
        check = getattr(call, "check_args", None)
        call = _of_others(call, item.args, where)
        functions.append(
            _Function(
                name=name,
                target=item.target,
                weight=item.weight,
                call=call,
                args=item.args,
                wants_rows=_check_signature(call, item.args, where),
            )
        )
        if check is not None:
            _check_args(check, item.args, where)
    return RewardFunctions(functions, env_weight=section.env_weight, timeout_s=timeout_s)


class RewardFunctions:
    """Scores finished rollouts: `env_weight * environment + sum of weight * function`.

    A function is called as `f(trajectory, task, **args)` with the last row of the rollout, whose
    ids hold the whole conversation unless it was rewritten; one that names a parameter `rows` gets
    all rows by that name. Functions for verl, TRL or OpenRLHF are called as these call them
    (`other_trainers`). Plain functions run in threads, several at once. A function with an
    attribute `check_args` has it called with its `args` before anything runs.
    """

    def __init__(
        self, functions: Sequence[_Function], *, env_weight: float, timeout_s: float
    ) -> None:
        self._functions = tuple(functions)
        self._env_weight = env_weight
        self._timeout_s = timeout_s

    async def __call__(self, task: Task, rows: Sequence[Trajectory]) -> list[Trajectory]:
        """The rows with the whole reward and its parts; `score` stays what the environment said.

        Args:
            task: of the rollout.
            rows: of one rollout whose reward can be trusted.

        Raises:
            GraderError: a function raised, took too long or returned no finite number; or its name
                is that of a part the environment gives.
        """
        last = rows[-1]
        assert last.reward is not None
        try:
            async with asyncio.TaskGroup() as group:
                running = [
                    group.create_task(self._value(function, task, rows))
                    for function in self._functions
                ]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        values = {f.name: job.result() for f, job in zip(self._functions, running, strict=True)}
        parts = {ENV_PART: last.reward, **values}
        twice = sorted(parts.keys() & last.reward_parts.keys())
        if twice:
            raise GraderError(
                f"the environment gives a reward part {twice[0]!r}, and so does the config; rename "
                "the one in reward.functions, or the environment's"
            )
        reward = math.fsum(
            [
                self._env_weight * last.reward,
                *(function.weight * values[function.name] for function in self._functions),
            ]
        )
        return [
            replace(row, reward=reward, reward_parts={**row.reward_parts, **parts}) for row in rows
        ]

    async def _value(self, function: _Function, task: Task, rows: Sequence[Trajectory]) -> float:
        args = {**function.args, **({"rows": tuple(rows)} if function.wants_rows else {})}
        where = f"reward function {function.name!r} ({function.target})"
        try:
            async with limited(self._timeout_s):
                if inspect.iscoroutinefunction(function.call):
                    value = await function.call(rows[-1], task, **args)
                else:
                    value = await asyncio.to_thread(function.call, rows[-1], task, **args)
                    value = await value if inspect.isawaitable(value) else value
        except TimeoutError as error:
            raise GraderError(f"{where} took longer than {self._timeout_s:g} s") from error
        except Exception as error:  # boundary to a user's function, which may raise anything
            raise GraderError(f"{where}: {type(error).__name__}: {error}") from error
        return _number(value, where)


def _check_args(check: Callable[..., None], args: Mapping[str, Any], where: str) -> None:
    """Let a function that can look at its own arguments do so."""
    try:
        check(**args)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _number(value: Any, where: str) -> float:
    """One finite number, from a float, an integer or a scalar of any array library."""
    if hasattr(value, "item") and getattr(value, "size", 1) != 0:
        try:
            value = value.item()
        except (ValueError, RuntimeError, TypeError) as error:
            raise GraderError(f"{where} returned more than one value: {error}") from None
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise GraderError(f"{where} returned {value!r}, expected one finite number")
    return float(value)


def _of_others(call: Callable[..., Any], args: Mapping[str, Any], where: str) -> Callable[..., Any]:
    """`call`, made to take `(trajectory, task, **args)` if it is written for another trainer."""
    try:
        return adapted(call, args) or call
    except TypeError as error:
        raise ConfigError(f"{where}: {error}; name it in args") from None
    except ValueError:  # something built in has no signature: the first call will show
        return call


def _check_signature(call: Callable[..., Any], args: Mapping[str, Any], where: str) -> bool:
    """Whether it wants `rows`; raises if `(trajectory, task, **args)` does not fit it."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # something built in: the first call will show
        return False
    wants_rows = "rows" in signature.parameters
    given = {**args, **({"rows": None} if wants_rows else {})}
    try:
        signature.bind(None, None, **given)
    except TypeError as error:
        raise ConfigError(
            f"{where} cannot be called with (trajectory, task"
            f"{''.join(f', {name}=...' for name in given)}): {error}; its signature is {signature}"
        ) from None
    return wants_rows
