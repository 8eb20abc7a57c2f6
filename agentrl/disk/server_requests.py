"""`RUN/requests`: servers that a person asks a live run to take, or to release.

    person:  agentrl control RUN add-server URL | remove-server URL   RUN/requests/N.ask
    run:     does it, and replaces the file by                        RUN/requests/N.answer
    person:  reads the answer and removes it

Only a process that holds the lock of the run answers, so a run that is not alive is refused before
anything is written. What a killed process left unanswered is thrown away by the next with the lock;
what is asked from then on is answered once its engines serve.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from agentrl.disk.run_directory import read_identity
from agentrl.errors import RunError
from agentrl.machine.files import write_whole

LOOK_S = 0.2
"""Seconds between two looks for the answer."""
ANSWER_S = 300.0
"""Seconds until a command reports that no answer came: a server may be loading weights first."""


class ServerAction(StrEnum):
    """Change of the servers of a live run."""

    ADD = "add-server"
    """Take another server."""
    REMOVE = "remove-server"
    """Release one, once its turns have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRequest:
    """One request of a person."""

    path: Path
    """File of the request."""
    action: ServerAction
    """What to do."""
    server: str
    """Address of the server, as `http://host:port`; to remove one, its name will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAnswer:
    """Answer of the run."""

    done: bool
    """Whether it did what was asked."""
    text: str
    """What it did, or why not."""


def ask_run(
    run: Path, action: ServerAction, server: str, *, limit_s: float = ANSWER_S
) -> RequestAnswer:
    """Ask a live run to take a server or to release one, and wait for its answer.

    Args:
        run: its directory.
        action: what to do.
        server: address or name.
        limit_s: seconds to wait.

    Raises:
        RunError: it is no run directory, no process runs there, it has no servers, it cannot be
            written, or no answer came.
    """
    config, _ = read_identity(run)
    if config.serving.engine == "embedded":
        raise RunError(
            f"run {run} samples from its trainer's own weights (serving.engine: embedded) and has "
            "no servers; servers join runs of vllm and external"
        )
    if not _is_alive(run):
        raise RunError(
            f"no process runs in {run}, so no server can join or leave it; change serving.urls, "
            f"or go on with it first: agentrl train {run} --resume"
        )
    folder = run / "requests"
    path = folder / f"{time.time_ns()}-{os.getpid()}.ask"
    try:
        folder.mkdir(exist_ok=True)
        write_whole(path, json.dumps({"action": action, "server": server}).encode())
        return _wait(path, run, limit_s)
    except OSError as error:
        raise RunError(f"{folder} cannot be used: {error.strerror or error}") from error
    finally:
        path.unlink(missing_ok=True)


def _wait(path: Path, run: Path, limit_s: float) -> RequestAnswer:
    answered, deadline = path.with_suffix(".answer"), time.monotonic() + limit_s
    while time.monotonic() < deadline:
        alive = _is_alive(run)  # asked first: it may answer and end between the two
        if answered.exists():
            data = json.loads(answered.read_bytes())
            answered.unlink()
            return RequestAnswer(done=bool(data["done"]), text=str(data["text"]))
        if not alive:
            raise RunError(f"the process of run {run} ended before it answered; nothing is changed")
        time.sleep(LOOK_S)
    raise RunError(
        f"run {run} did not answer within {limit_s:g} s; it may still do what was asked, see its "
        "run.log"
    )


def _is_alive(run: Path) -> bool:
    """Whether a process holds the lock of the run."""
    with contextlib.suppress(FileNotFoundError), (run / ".lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def read_requests(run: Path) -> list[ServerRequest]:
    """Requests that nobody has answered, oldest first; files that are none are removed."""
    found = []
    for path in sorted((run / "requests").glob("*.ask")):
        try:
            data = json.loads(path.read_bytes())
            action = ServerAction(data["action"])
            found.append(ServerRequest(path=path, action=action, server=str(data["server"])))
        except FileNotFoundError:
            continue  # who asked has given up
        except (ValueError, KeyError, TypeError):
            path.unlink(missing_ok=True)
    return found


def answer_request(request: ServerRequest, answer: RequestAnswer) -> None:
    """Answer a request; nothing is left where nobody waits for it any more.

    Raises:
        OSError: the disk does not take it.
    """
    if request.path.exists():
        write_whole(request.path.with_suffix(".answer"), json.dumps(asdict(answer)).encode())
        request.path.unlink(missing_ok=True)
