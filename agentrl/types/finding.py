"""The record of a check's result: what was looked at, how it came out, and what to do about it.

Everything that looks at something and judges it reports `Finding`s: preflight, the detectors of a
run, `agentrl prove`, and the checks of chat templates, environments, sandboxes and servers. A check
that measures more than words can say has a subclass with the additional fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """Outcome of a check, from nothing wrong to cannot work."""

    OK = "ok"
    """It looked, and nothing is wrong."""
    WARN = "warn"
    """Doubtful enough to look at; nothing stops."""
    FAIL = "fail"
    """It cannot work as it is."""
    UNKNOWN = "unknown"
    """There was nothing, or not yet enough, to judge by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check, as one line of a report.

    Example:
        >>> Finding(name="kl", status=Status.WARN, detail="no reference policy").fix
        ''
    """

    name: str
    """The check, unique in its report, as in `memory`, `entropy_collapse` or `E101`."""
    status: Status
    """Result of the check."""
    detail: str = ""
    """What was found; of a failed check also what to do, where `fix` is empty."""
    fix: str = ""
    """What to change, as in `set eval.every_steps: 50`; empty where nothing is to be done."""


def warn(name: str, detail: str, fix: str = "") -> Finding:
    """A finding that names what is doubtful, and what to set instead."""
    return Finding(name=name, status=Status.WARN, detail=detail, fix=fix)


def fail(name: str, detail: str, fix: str = "") -> Finding:
    """A finding that explains why something cannot work, and what to set instead."""
    return Finding(name=name, status=Status.FAIL, detail=detail, fix=fix)


def any_failed(findings: Iterable[Finding]) -> bool:
    """Return true if at least one finding is a failure."""
    return any(finding.status is Status.FAIL for finding in findings)
