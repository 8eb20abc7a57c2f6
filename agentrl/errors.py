"""The errors of agentrl, one class per boundary.

    AgentrlError
    |-- ConfigError            a key, a value, a combination or an import string (also a ValueError)
    |-- DataError              a dataset, a row, a store (also a ValueError)
    |-- ChatError              a template, a boundary between turns, a parser
    |-- EnvError               `reset`, `step` or `close` of an environment
    |   |-- GraderError        the reward could not be computed
    |   `-- ServedModelError   a served model gave no answer, or none of the form asked for
    |-- ToolError              shown to the model; the only error it ever sees
    |-- SandboxError           the sandbox itself failed (infrastructure)
    |   |-- SandboxUnavailable no backend works on this machine
    |   `-- SandboxLost        ended or not had for a reason that is known to lie outside it
    |-- EngineError            an engine or its transport failed (infrastructure)
    |   |-- EngineRefused      the request was turned away before anything was sampled
    |   |-- NoEngine           no engine takes requests, and none came back in time
    |   |-- WakeFailed         a server did not leave the device it shares, or not come back to it
    |   `-- SyncError          weights did not arrive whole on every engine
    |       `-- WeightsDoNotFit    a server holds another model; no later try can succeed
    |-- TrainError             a broken number or tensor in the trainer
    |   |-- StepAbandoned      a step that is not trained to its end
    |   `-- RanksParted        trainer ranks that must make the same call did not
    `-- RunError               a run directory, a checkpoint, a resume
        |-- Outage             the run had no engine for longer than it may
        `-- UntrustedFile      a file of a run that could harm its reader (also an OSError)

A message says what, what it got, what it expected and what to do. Every class is picklable: the
message is its only argument.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches


class AgentrlError(Exception):
    """Root of the tree: everything agentrl raises on purpose."""


class ConfigError(AgentrlError, ValueError):
    """A configuration that cannot be used, found before anything is started."""


class DataError(AgentrlError, ValueError):
    """A dataset, a row or a stored file that cannot be read as what it claims to be."""


class ChatError(AgentrlError, ValueError):
    """A chat template or parser that cannot keep the tokens exact."""


class EnvError(AgentrlError):
    """An environment failed; costs its rollout, not the run."""


class GraderError(EnvError):
    """A reward could not be computed; never counted as a reward of 0."""


class ServedModelError(EnvError):
    """A served model (judge, user, teacher) gave no answer, or none of the form asked for.

    It costs the rollout that asked; it is never an answer, so never a reward of 0.
    """


class ToolError(AgentrlError):
    """Raised in a tool; the model reads the message as the call's result."""


class SandboxError(AgentrlError):
    """The sandbox failed, not the program inside it."""


class SandboxUnavailable(SandboxError, ConfigError):
    """The requested backend does not work on this machine."""


class SandboxLost(SandboxError):
    """A sandbox ended, or could not be had, for a reason that is known to lie outside of it.

    As a node that was lost, an API or a daemon that went away, a full disk of the host. No program
    in the sandbox can have caused it, so it is never charged to the model.
    """


class EngineError(AgentrlError):
    """An engine or its transport failed."""


class EngineRefused(EngineError):
    """The engine did not take the request: nothing was sampled, so another engine may serve it."""


class NoEngine(EngineError):
    """No engine takes requests, and none came back within the limit: nothing was asked of any."""


class WakeFailed(EngineError):
    """A server that shares its device did not go to sleep or wake up; only a new start helps."""


class SyncError(EngineError):
    """Weights did not arrive, or not those that were sent."""


class WeightsDoNotFit(SyncError):
    """A server holds a model of other names or shapes: no later try can succeed."""


class TrainError(AgentrlError):
    """The trainer met a number or a tensor it must not train on."""


class StepAbandoned(TrainError):
    """A training step was given up between two micro-batches, as it was asked to be."""


class RanksParted(TrainError):
    """Trainer ranks that must make the same call did not: one ended, hangs, or made another one."""


class RunError(AgentrlError):
    """A run directory or checkpoint that cannot be used."""


class Outage(RunError):
    """The run had no engine for longer than it may; it stopped before any task was lost."""


class UntrustedFile(RunError, OSError):
    """A file of a run that is not touched: a link out of the run, or far too much in it.

    Readers leave it out as any other file that the system does not give them.
    """


_LONGEST_NAME = 100


def choices(got: str, valid: Iterable[str]) -> str:
    """`got 'hermez'; did you mean 'hermes'? valid: fenced_code, hermes, ...` for messages."""
    names = sorted(valid)
    # A model may have written it, at any length; likeness takes time with its square.
    got = got if len(got) <= _LONGEST_NAME else f"{got[:_LONGEST_NAME]}..."
    near = _nearest(got.lower(), names)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ";"
    return f"got {got!r}{hint} valid: {', '.join(names) or '(none)'}"


def some_of(names: Iterable[str], most: int = 4) -> str:
    """The first few of many names, for a message, and how many more there are.

    Example:
        >>> some_of("abcdef"), some_of("ab")
        ('a, b, c, d and 2 more', 'a, b')
    """
    listed = list(names)
    rest = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {rest} more" if rest > 0 else "")


def in_words(error: Exception) -> str:
    """The error as one line; one that is none of ours has its kind and the place it came from."""
    text = str(error)
    if not isinstance(error, AgentrlError):
        frames = traceback.extract_tb(error.__traceback__)
        place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        text = f"{type(error).__name__}: {text}{place}"
    return " ".join(text.split())


_MARK_CHARS = 80


def shortened(text: str, most: int = 16_000) -> str:
    """Beginning and end of a text with a mark between them that counts how much is left out.

    Args:
        text: any text.
        most: characters of the result, above 80.
    """
    if len(text) <= most:
        return text
    half = (most - _MARK_CHARS) // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def _nearest(got: str, names: Iterable[str]) -> list[str]:
    """The name most like it, or those of which it is a part, as `loss` of `policy_loss`.

    Of names that are as like, the one with more of the letters: `gpro` is `grpo` and not `gspo`.
    """
    lower = {name.lower(): name for name in names}
    close = get_close_matches(got, lower, n=len(lower) or 1)
    if not close:
        return [lower[name] for name in lower if got in name.split("_")][:3]

    def likeness(name: str) -> tuple[float, int]:
        return SequenceMatcher(a=name, b=got).ratio(), (Counter(name) & Counter(got)).total()

    return [lower[max(close, key=likeness)]]
