"""One function of `reward.functions`: its signature, one call of it, and what it may give."""

from __future__ import annotations

import functools
import inspect
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.config import resolve_callable
from agentrl.config.reward import RewardFunction
from agentrl.errors import ConfigError, GraderError
from agentrl.plugins.own_threads import own_thread
from agentrl.plugins.user_code import described, hangs_in, user_call
from agentrl.reward.other_trainers import adapted
from agentrl.served.waiting import limited
from agentrl.types import MOST_REWARD, RewardValue, Task
from agentrl.types.explanation import read_explanation

GROUP_PARAMETER = "trajectories"
"""First parameter of a function that is called once for all rollouts of a group."""
ENV_PART = "env"
"""Name under which `reward_parts` holds the environment's own reward, before its weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardTarget:
    """A function of a config, ready to be called."""

    name: str
    """Name in `reward.functions`."""
    target: str
    """Import string, for messages."""
    weight: float
    """Factor of its values in the reward."""
    call: Callable[..., Any]
    """The function, made to take `(trajectory, task, **args)` or `(trajectories, task, **args)`."""
    args: Mapping[str, Any]
    """Keyword arguments, `rows` not among them."""
    wants_rows: bool
    """Whether it names a parameter `rows`."""
    of_group: bool
    """Whether it is called once for all rollouts of a group."""
    compares: bool = False
    """Whether it is ours of groups, so that a rollout alone has no place in it."""

    @property
    def where(self) -> str:
        """Words that name it in a message."""
        return f"reward function {self.name!r} ({self.target})"

    async def ask(self, shown: Any, task: Task, rows: Any, *, timeout_s: float) -> Any:
        """Call the function, and give back the values that it gave.

        Args:
            shown: its first argument: one trajectory, or those of a group.
            task: its second one.
            rows: given by that name, if it wants them.
            timeout_s: limit; the wait in line for a served model does not count.

        Raises:
            GraderError: it raised or took too long.
        """
        args = {**self.args, **({"rows": rows} if self.wants_rows else {})}
        call = functools.partial(self.call, shown, task, **args)
        return await ask_grader(call, self.where, timeout_s=timeout_s)


async def ask_grader(call: Callable[[], Any], where: str, *, timeout_s: float) -> Any:
    """The value of a user's function, called in a thread of its own; `where` names it in errors.

    Raises:
        GraderError: it raised, or took longer than `timeout_s` without the wait for a served model.
    """
    try:
        async with limited(timeout_s):
            return await user_call(functools.partial(own_thread, call), limit_s=timeout_s)
    except TimeoutError as error:
        longest = f"{timeout_s:g} s{hangs_in(error)}"
        raise GraderError(f"{where} took longer than {longest}") from error
    except Exception as error:  # boundary to a user's function, which may raise anything
        raise GraderError(f"{where}: {described(error)}") from error


def load_target(name: str, item: RewardFunction, *, base: Path | None) -> RewardTarget:
    """A function of a config, resolved now.

    Raises:
        ConfigError: an import string that does not resolve, a signature that does not fit, or
            arguments that the function refuses.
    """
    found = resolve_callable(item.target, base=base)
    where = f"reward.functions.{name}: {item.target!r}"
    if name == ENV_PART:
        raise ConfigError(f"{where}: {ENV_PART!r} is the environment's own part; rename it")
    call = _of_others(found, item.args, where)
    wants_rows, of_group = _check_signature(call, item.args, where)
    check = getattr(found, "check_args", None)
    if check is not None:
        try:
            check(**item.args)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    return RewardTarget(
        name=name,
        target=item.target,
        weight=item.weight,
        call=call,
        args=item.args,
        wants_rows=wants_rows,
        of_group=of_group,
        compares=of_group and call is found,
    )


def read_value(value: Any, where: str) -> RewardValue:
    """The value that a function gave: a number, a scalar of any array library, or a `RewardValue`.

    Raises:
        GraderError: it is none of these, or not finite, or its explanation is none.
    """
    if isinstance(value, RewardValue):
        parts = {
            str(name): _number(part, f"{where}: part {name!r}")
            for name, part in value.parts.items()
        }
        try:
            explanation = read_explanation(value.explanation)
        except ValueError as error:
            raise GraderError(f"{where}: {error}") from None
        return RewardValue(value=_number(value.value, where), parts=parts, explanation=explanation)
    return RewardValue(value=_number(value, where))


def whole_reward(terms: Sequence[float], where: str) -> float:
    """The sum of weighted values.

    Raises:
        GraderError: it is too large to be trained on.
    """
    return _number(math.fsum(terms), f"{where}: their weighted sum")


def parts_with(parts: Mapping[str, float], values: Mapping[str, RewardValue]) -> dict[str, float]:
    """Parts of a reward, with the values of functions and their own parts as `FUNCTION/PART`.

    Args:
        parts: what is there already, from the environment.
        values: by name of the function.

    Raises:
        GraderError: both have a part of one name.
    """
    found = dict(parts)
    for name, given in values.items():
        own = {f"{name}/{part}": number for part, number in given.parts.items()}
        for key, number in {name: given.value, **own}.items():
            if key in found:
                raise GraderError(
                    f"the environment gives a reward part {key!r}, and so does the config; rename "
                    "the one in reward.functions, or the environment's"
                )
            found[key] = number
    return found


def _number(value: Any, where: str) -> float:
    if hasattr(value, "item") and getattr(value, "size", 1) != 0:
        try:
            value = value.item()
        except (ValueError, RuntimeError, TypeError) as error:
            raise GraderError(f"{where} returned more than one value: {error}") from None
    # Comparing takes whole numbers of any size, where `math.isfinite` raises.
    if not isinstance(value, (int, float)) or not abs(value) <= MOST_REWARD:
        raise GraderError(
            f"{where} returned {reprlib.repr(value)}, expected one finite number of at most "
            f"{MOST_REWARD:g}"
        )
    return float(value)


def _of_others(call: Callable[..., Any], args: Mapping[str, Any], where: str) -> Callable[..., Any]:
    """`call`, made to take `(trajectory, task, **args)` if it is written for another trainer."""
    try:
        return adapted(call, args) or call
    except TypeError as error:
        raise ConfigError(f"{where}: {error}; name it in args") from None
    except ValueError:  # something built in has no signature: the first call will show
        return call


def _check_signature(
    call: Callable[..., Any], args: Mapping[str, Any], where: str
) -> tuple[bool, bool]:
    """Whether it wants `rows`, and whether it is one of groups; raises if arguments do not fit."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # something built in: the first call will show
        return False, False
    names = list(signature.parameters)
    wants_rows, of_group = "rows" in names, names[:1] == [GROUP_PARAMETER]
    given = {**args, **({"rows": None} if wants_rows else {})}
    try:
        signature.bind(None, None, **given)
    except TypeError as error:
        raise ConfigError(
            f"{where} cannot be called with ({GROUP_PARAMETER if of_group else 'trajectory'}, task"
            f"{''.join(f', {name}=...' for name in given)}): {error}; its signature is "
            f"{signature}; expected f(trajectory, task), f(trajectories, task), or what another "
            "trainer gives: completions (TRL), solution_str (verl), queries (OpenRLHF)"
        ) from None
    return wants_rows, of_group
