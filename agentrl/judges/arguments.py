"""Arguments of judges in a run file: checked, and the same judge for the same ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from agentrl.errors import ConfigError, choices
from agentrl.judges.material import SHOWN

Judge = TypeVar("Judge")


def one_for_each(make: Callable[[dict[str, Any]], Judge]) -> Callable[[Mapping[str, Any]], Judge]:
    """A maker that gives the same judge for equal arguments.

    Args:
        make: makes a judge of checked `show` and `max_chars` and of whatever else it takes.

    The maker raises a ConfigError for arguments that are no values of JSON, or wrong.
    """

    @lru_cache(maxsize=64)
    def made(text: str) -> Judge:
        args = json.loads(text)
        check_shown(args["show"], args["max_chars"])
        return make(args)

    def judge_of(values: Mapping[str, Any]) -> Judge:
        try:
            text = json.dumps(values)
        except TypeError as error:
            raise ConfigError(f"args: expected values of JSON: {error}") from None
        return made(text)

    return judge_of


def check_shown(show: Any, max_chars: Any) -> None:
    """Refuse a `show` or `max_chars` that no judge has.

    Raises:
        ConfigError: as the name says.
    """
    if show not in SHOWN:
        raise ConfigError(f"show: {choices(str(show), SHOWN)}")
    if type(max_chars) is not int or max_chars < 200:
        raise ConfigError(f"max_chars is {max_chars!r}, expected a whole number of 200 or more")


def check_standard(standard: Any) -> None:
    """Refuse a standard without content.

    Raises:
        ConfigError: it is no text, or an empty one.
    """
    if not isinstance(standard, str) or not standard.strip():
        raise ConfigError(f"standard: got {standard!r}, expected a text")


def check_labelled(check: Any) -> None:
    """Refuse an `args.check` that names no file.

    Raises:
        ConfigError: it is neither a text nor left out.
    """
    if check is not None and not isinstance(check, str):
        raise ConfigError(f"check: got {check!r}, expected a file of labelled answers")
