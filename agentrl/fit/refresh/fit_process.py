"""The process of a refresh as its run sees it: waited for, and ended whenever the run ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from agentrl.fit.refresh.failures import RefreshFailed
from agentrl.fit.refresh.jobs import FitOutcome, RefreshJob
from agentrl.machine.processes.child import ChildEnded, ChildProcess

TARGET = "agentrl.fit.refresh.fit_child:serve"
SILENCE_S = 1800.0
"""Seconds without a word of the process after which it is ended: it hangs."""
_GRACE_S = 5.0
_LINES = 4
"""Lines about steps that the user is shown."""


async def train_apart(
    job: RefreshJob,
    *,
    log: Path,
    say: Callable[[str], None],
    target: str = TARGET,
    silence_s: float = SILENCE_S,
) -> FitOutcome:
    """Do a job in a child process; however this call ends, nothing of it is left running.

    Args:
        job: the work.
        log: takes what the process writes.
        say: called with each line for the user.
        target: function of the process.
        silence_s: seconds without a word after which it is ended.

    Raises:
        RefreshFailed: it failed, died or hung; names the log.
    """
    with log.open("ab") as output:
        process = ChildProcess(target, output=output, grace_s=_GRACE_S)
    try:
        await process.send_async(asdict(job))
        said = 0
        while True:
            async with asyncio.timeout(silence_s):
                head = (await process.receive_async()).head
            if "outcome" in head:
                return FitOutcome(**head["outcome"])
            if "error" in head:
                raise RefreshFailed(f"{head['error']}; see {log}")
            if "step" in head and (part := head["step"] * _LINES // head["steps"]) > said:
                said = part
                loss = f", loss {head['loss']:.4g}" if math.isfinite(head["loss"]) else ""
                say(f"step {head['step']} of {head['steps']}{loss}")
    except TimeoutError:
        raise RefreshFailed(f"no word of the fit within {silence_s:g} s; see {log}") from None
    except ChildEnded as error:
        raise RefreshFailed(f"the fit died: {error}; see {log}") from None
    finally:
        await asyncio.shield(asyncio.to_thread(process.close))
