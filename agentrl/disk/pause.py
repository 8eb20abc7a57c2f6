"""`RUN/control`: what a paused run waits for, and how it is answered.

    run:     state paused    ----->  RUN/control
    person:  agentrl control RUN continue | stop    replaces it
    run:     reads the answer, notes it in health.jsonl, removes the file

The file exists while a run is paused and at no other time, also where the process of the run has
been killed meanwhile: the answer is read when it is resumed. The first answer stands; a later
one is refused with a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from agentrl.errors import RunError
from agentrl.machine.files import write_whole

logger = logging.getLogger(__name__)

_BYTES = 2**16
_LOOK_S = 0.5
"""Seconds between two looks at the file."""


class PauseState(StrEnum):
    """Content of the control file."""

    PAUSED = "paused"
    """The run waits."""
    CONTINUE = "continue"
    """Go on."""
    STOP = "stop"
    """Score the policy and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """The content of the file."""

    state: PauseState
    """Waiting, or how it was answered."""
    step: int
    """Training steps done."""
    why: str
    """The rule and its evidence."""


def write_pause(path: Path, pause: Pause) -> None:
    """Replace the control file of a run.

    Raises:
        OSError: the disk does not take it.
    """
    write_whole(path, json.dumps(asdict(pause)).encode() + b"\n")


def read_pause(path: Path) -> Pause | None:
    """The content of the file; None where there is none, or one that is not ours."""
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(_BYTES))
        pause = Pause(state=PauseState(data["state"]), step=int(data["step"]), why=str(data["why"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return pause


def _open_pause(path: Path, step: int, why: str) -> PauseState:
    """Make the file, so that it can be answered; an answer that is there already stays.

    Args:
        path: the file; made again where it is missing or speaks of another pause.
        step: training steps done.
        why: the rule and its evidence.

    Returns:
        What stands there then.

    Raises:
        OSError: the disk does not take it.
    """
    pause = read_pause(path)
    if pause is None or pause.step != step:
        pause = Pause(state=PauseState.PAUSED, step=step, why=why)
        write_pause(path, pause)
    return pause.state


async def wait_for_answer(
    path: Path, step: int, why: str, *, asked: Callable[[], None]
) -> PauseState:
    """Wait for `continue` or `stop`; an answer that was given while no process ran counts.

    Args:
        path: the file; made again where it is missing or speaks of another pause.
        step: training steps done.
        why: the rule and its evidence.
        asked: called once, as soon as the pause can be answered.
    """
    was_asked = warned = False
    while True:
        try:
            state = _open_pause(path, step, why)
        except OSError as error:  # a full disk may have room later; Ctrl-C ends the wait
            if not warned:
                logger.warning("%s cannot be written, nobody can answer: %s", path, error)
            warned = True
        else:
            if not was_asked:
                asked()
            was_asked = True
            if state is not PauseState.PAUSED:
                return state
        await asyncio.sleep(_LOOK_S)


def clear_pause(path: Path) -> None:
    """The run is not paused, or not any more."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def answer(run: Path, state: PauseState) -> Pause:
    """Tell a paused run to go on or to stop.

    Args:
        run: its directory.
        state: `continue` or `stop`.

    Returns:
        What it waited for.

    Raises:
        RunError: it is no run directory, it is not paused, it was given the other answer already,
            or it cannot be written.
    """
    if not (run / "config.yaml").is_file():
        raise RunError(f"{run} holds no config.yaml, so it is not a run directory")
    try:
        with _alone(run):
            return _answer(run, state)
    except OSError as error:
        raise RunError(f"{run}/control cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def _alone(run: Path) -> Iterator[None]:
    """Lock the run for one answer: two at once would tear the file, or both seem accepted."""
    descriptor = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _answer(run: Path, state: PauseState) -> Pause:
    pause = read_pause(run / "control")
    if pause is None:
        raise RunError(
            f"run {run} is not paused, so there is nothing to answer; a rule with the action pause "
            "pauses a run, and Ctrl-C ends one so that it can be resumed"
        )
    if pause.state not in (PauseState.PAUSED, state):
        raise RunError(
            f"run {run} was told to {pause.state} after step {pause.step} already, and will do so "
            "when it looks next; Ctrl-C ends it whatever it does, and --resume goes on from there"
        )
    write_pause(run / "control", Pause(state=state, step=pause.step, why=pause.why))
    return pause
