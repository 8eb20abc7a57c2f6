"""A wall clock that goes wrong on purpose, for modules that are imported afterwards."""

from __future__ import annotations

import datetime
import time
from typing import Any


def shift_clock(seconds: float) -> None:
    """Shift the time of `time` and `datetime` in this process; durations stay as they are."""
    if not seconds:
        return
    delta = datetime.timedelta(seconds=seconds)
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds  # type: ignore[assignment]
    time.time_ns = lambda: now_ns() + int(seconds * 1e9)  # type: ignore[assignment]
    for name in ("localtime", "gmtime", "ctime"):
        setattr(time, name, _from_now(getattr(time, name)))
    datetime.datetime, datetime.date = _classes(delta)  # type: ignore[misc]


def _from_now(function: Any) -> Any:
    return lambda seconds=None: function(time.time() if seconds is None else seconds)


def _classes(delta: datetime.timedelta) -> tuple[type, type]:
    real, real_date = datetime.datetime, datetime.date

    class Meta(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, real if issubclass(cls, real) else real_date)

    class Shifted(real, metaclass=Meta):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return real.now(tz) + delta

        @classmethod
        def utcnow(cls) -> Any:
            return real.now(datetime.UTC).replace(tzinfo=None) + delta

        @classmethod
        def today(cls) -> Any:
            return real.now() + delta

    class ShiftedDate(real_date, metaclass=Meta):
        @classmethod
        def today(cls) -> Any:
            return (real.now() + delta).date()

    for made, base in ((Shifted, real), (ShiftedDate, real_date)):
        # What an environment shows of a value, or pickles, names the class.
        shown: dict[str, Any] = {
            name: getattr(base, name) for name in ("__module__", "__name__", "__qualname__")
        }
        shown["__repr__"] = lambda self, said=base.__repr__: f"datetime.{said(self)}"
        for name, value in shown.items():
            setattr(made, name, value)
    return Shifted, ShiftedDate
