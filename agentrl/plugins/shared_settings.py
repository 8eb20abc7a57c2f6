"""Names user code that changes what the whole process shares and nobody can put back for it.

A constructor may set a variable of the environment that a later `step` of the same rollout needs,
so that nothing is put back; but the other rollouts see it, too. The functions that change such a
setting log each caller of theirs once.
"""

from __future__ import annotations

import functools
import locale
import logging
import os
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

_named: set[tuple[str, str]] = set()
"""What was logged: a setting and the place that changed it."""
_MOST_NAMED = 100
"""Settings and places; more are of a program that makes them up."""


def name_changes(place: Callable[[], str]) -> None:
    """Begin to log changes of variables, locale and time zone. Idempotent.

    Args:
        place: `NAME at FILE:LINE` of the user code that is under way in the present thread; empty
            where there is none.
    """
    if hasattr(os.putenv, "__wrapped__"):
        return

    def note(setting: str) -> None:
        if len(_named) >= _MOST_NAMED or not (at := place()) or (setting, at) in _named:
            return
        _named.add((setting, at))
        logger.warning(
            "%s changed %s, which belongs to the whole process: all other rollouts see it; set it "
            "before the run, or for the program that needs it",
            at,
            setting,
        )

    put, unset, set_locale, set_zone = os.putenv, os.unsetenv, locale.setlocale, time.tzset

    @functools.wraps(put)
    def putenv(name: Any, value: Any, /) -> None:
        if os.environb.get(os.fsencode(name)) != os.fsencode(value):
            note(f"os.environ[{os.fsdecode(name)!r:.200}]")
        put(name, value)

    @functools.wraps(unset)
    def unsetenv(name: Any, /) -> None:
        if os.fsencode(name) in os.environb:
            note(f"os.environ[{os.fsdecode(name)!r:.200}]")
        unset(name)

    @functools.wraps(set_locale)
    def setlocale(category: int, locale: Any = None) -> str:
        before = set_locale(category)
        after = set_locale(category, locale)
        if after != before:
            note(f"the locale to {after!r:.200}")
        return after

    @functools.wraps(set_zone)
    def tzset() -> None:
        before = time.tzname
        set_zone()
        if time.tzname != before:
            note("the time zone")

    os.putenv, os.unsetenv, locale.setlocale, time.tzset = putenv, unsetenv, setlocale, tzset
