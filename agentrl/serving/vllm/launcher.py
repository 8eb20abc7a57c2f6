"""Starts vLLM servers on this machine and ends them, every process of them.

    launch_servers ---> VllmServer.start    tree ---> API server ---> engine core ---> worker
                        VllmServer.stop     (see machine/processes/tree.py: nothing stays)

A server counts as started once it answers `/v1/models` with a name that only this start knows, so
that a stranger on the same port is never taken for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from agentrl.errors import ConfigError, EngineError
from agentrl.machine.processes import scratch, tree
from agentrl.serving.vllm.command import SERVED_NAME, ServerCommand
from agentrl.serving.vllm.http import Http

logger = logging.getLogger(__name__)

Progress = Callable[[str, str], None]
"""Called with `(server name, what it does now)`."""

GRACE_S = 10.0
"""Seconds a server has to end by itself; it takes one or two."""
_POLL_S = 0.25
_PORT_TRIES = 5
_TAIL = 15
"""Log lines in an error."""
_PORT_TAKEN = "address already in use"


class VllmServer:
    """One server process tree. Made stopped; `stop` leaves nothing of it."""

    def __init__(
        self,
        command: ServerCommand,
        *,
        name: str,
        log: Path,
        host: str = "127.0.0.1",
        port: int | None = None,
        start_limit_s: float = 600.0,
        grace_s: float = GRACE_S,
    ) -> None:
        """Set what to run.

        Args:
            command: from `server_command`.
            name: for messages, and as the engine's name.
            log: file that gets both output streams, appended to at each start.
            host: address to listen at.
            port: None finds a free one at each start.
            start_limit_s: seconds until it must answer.
            grace_s: seconds between SIGTERM and SIGKILL.
        """
        self.name = name
        self.log = log
        self._command = command
        self._host = host
        self._wanted_port = port
        self._start_limit_s = start_limit_s
        self._grace_s = grace_s
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self.port = port or 0
        """Current or last port."""

    @property
    def url(self) -> str:
        """Address that the server answers at; changes with a restart unless the port was given."""
        host = "127.0.0.1" if self._host in ("0.0.0.0", "") else self._host
        return f"http://{host}:{self.port}"

    @property
    def running(self) -> bool:
        """True until all of its processes have ended."""
        return self._process is not None and not _ended(self._process.pid)

    @property
    def pid(self) -> int:
        """Process id of `processes.tree`, which ends after all processes of the server."""
        return self._process.pid if self._process is not None else 0

    async def start(self, progress: Progress | None = None) -> None:
        """Start and wait until it answers; on any failure nothing of it is left.

        Raises:
            ConfigError: the wanted port is taken, the log or the folder of compiled code cannot be
                written, or vLLM does not know an option.
            EngineError: it ended or did not answer in time; with the end of its log.
        """
        if self.running:
            raise EngineError(f"server {self.name} runs already at {self.url}")
        notify = progress or (lambda name, text: None)
        for attempt in range(1, _PORT_TRIES + 1):
            self.port = self._choose_port()
            alias = f"agentrl-{secrets.token_hex(8)}"
            notify(self.name, f"starting on port {self.port}")
            self._spawn(alias)
            try:
                await self._until_ready(alias, notify)
            except BaseException as error:
                await asyncio.shield(self.stop())
                taken = isinstance(error, EngineError) and _PORT_TAKEN in str(error).lower()
                if not taken or self._wanted_port is not None or attempt == _PORT_TRIES:
                    raise
                logger.info("port %d was taken meanwhile; another one", self.port)
            else:
                notify(self.name, f"ready at {self.url}")
                return

    async def restart(self, progress: Progress | None = None) -> None:
        """End what is left of it and start it again, with the weights it was first given.

        It gets its port again, unless another process has taken it meanwhile.
        """
        await self.stop()
        await self.start(progress)

    async def stop(self) -> None:
        """End the whole tree; returns once it is gone. Idempotent."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        # The tree is killed after its grace; past twice that, what kills it is itself broken.
        await _until(lambda: _ended(process.pid), 2 * self._grace_s + 10)
        # It has swept its tree, unless it was killed itself. While it is not reaped, its number
        # stands for its group and for no other.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait(5)
        self._process = None
        if not await _until(lambda: _group_gone(process.pid), 5):
            logger.warning("server %s: a process of it does not end", self.name)
        if status == -signal.SIGKILL:
            await asyncio.to_thread(scratch.sweep)

    def tail(self, lines: int = _TAIL) -> str:
        """The end of what it has printed since its last start."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._log_start)
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _choose_port(self) -> int:
        """The wanted port, or that of the last start, or one that the kernel reports free."""
        try:
            return self._free(self._wanted_port or self.port)
        except OSError as error:
            if self._wanted_port is None:
                return self._free(0)
            raise ConfigError(
                f"server {self.name} cannot listen at {self._host}:{self._wanted_port}: "
                f"{error.strerror}; choose another port or stop who has it"
            ) from None

    def _free(self, port: int) -> int:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((self._host, port))
            return probe.getsockname()[1]

    def _spawn(self, alias: str) -> None:
        cache = scratch.torch_cache()
        try:
            cache.mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"server {self.name} with its compiled code in {cache}: {error.strerror or error}; "
                "expected a folder that exists or can be made: remove what lies there, or set "
                "TMPDIR to a folder that can be written to"
            ) from error
        try:
            self._open(alias)
        except OSError as error:
            raise ConfigError(
                f"server {self.name} with its log at {self.log}: {error.strerror or error}; name "
                "another file for the log, or make room for the process"
            ) from error

    def _open(self, alias: str) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        words = [
            *(*tree.command(self._grace_s, scratch=True), *self._command.argv),
            *("--host", self._host, "--port", str(self.port)),
            *("--served-model-name", SERVED_NAME, alias),
        ]
        with self.log.open("ab") as file:
            self._log_start = file.tell()
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=_environment(self._command),
                start_new_session=True,  # Ctrl-C at the terminal is the parent's to handle
            )

    async def _until_ready(self, alias: str, notify: Progress) -> None:
        http = Http(self.url)
        shown = ""
        try:
            async with asyncio.timeout(self._start_limit_s):
                while not await self._answers(http, alias):
                    if not self.running:
                        raise self._died()
                    shown = self._report_stage(shown, notify)
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise EngineError(
                f"server {self.name} did not answer within serving.start_timeout_s "
                f"{self._start_limit_s:g} s; the end of {self.log}:\n{self.tail()}"
            ) from None
        finally:
            await http.close()

    async def _answers(self, http: Http, alias: str) -> bool:
        try:
            answer = await http.expect("GET", "/v1/models", limit_s=5.0)
        except EngineError:
            return False
        cards = (answer.json() or {}).get("data", ())
        return any(card.get("id") == alias for card in cards)

    def _report_stage(self, shown: str, notify: Progress) -> str:
        """Pass on what vLLM's log reports it is doing, once for each stage."""
        text = self.tail(200)
        stage = next((name for mark, name in reversed(_STAGES) if mark in text), shown)
        if stage != shown:
            notify(self.name, stage)
        return stage

    def _died(self) -> EngineError | ConfigError:
        text = self.tail(_TAIL)
        for line in text.splitlines():
            if "error: unrecognized arguments" in line or "error: argument" in line:
                said = line.partition("error: ")[2]
                return ConfigError(
                    f"vLLM does not take an option of serving.args: {said}; its options are "
                    "listed by python -m vllm.entrypoints.openai.api_server --help=all, and "
                    "agentrl train CONFIG --dry-run names the nearest"
                )
        status = self._process.wait(5) if self._process is not None else None
        causes = [line.strip() for line in text.splitlines() if _CAUSE.match(line.strip())]
        return EngineError(
            f"server {self.name} ended with status {status} while starting"
            f"{': ' + causes[-1] if causes else ''}; the end of {self.log}:\n{text}"
        )


def _environment(command: ServerCommand) -> dict[str, str]:
    """Variables of the server, whose temporary folder is one of its own."""
    # What it prints goes to a file, where each state of a progress bar would be a line.
    env = {"TQDM_DISABLE": "1", **os.environ, **command.env}
    # The sockets between its processes; without this they lie in the temporary folder.
    env.pop("VLLM_RPC_BASE_PATH", None)
    # Compiled code outlives a server; torch would keep it in the temporary folder.
    env.setdefault("TORCHINDUCTOR_CACHE_DIR", str(scratch.torch_cache()))
    return env


_CAUSE = re.compile(r"(\w+\.)*\w*(Error|Exception|error)\b.*:")
"""The line of a traceback that names what happened."""
_STAGES = (
    ("vLLM API server version", "reading options"),
    ("Initializing a V1 LLM engine", "starting its engine"),
    ("Starting to load model", "loading weights"),
    ("Loading weights took", "preparing the cache"),
    ("Starting vLLM API server", "opening its port"),
)
"""Lines of vLLM's log and what they mean, in their order."""


def _ended(pid: int) -> bool:
    """Whether a child has ended; it stays to be reaped."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True  # reaped already, by a handler of SIGCHLD


def _group_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


async def _until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether it came true in time."""
    deadline = asyncio.get_running_loop().time() + limit_s
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


async def launch_servers(
    commands: Sequence[ServerCommand],
    *,
    log_dir: Path,
    progress: Progress | None = None,
    start_limit_s: float = 600.0,
    names: Sequence[str] | None = None,
) -> list[VllmServer]:
    """Start servers side by side; all of them, or none.

    Args:
        commands: one for each server.
        log_dir: gets `NAME.log` for each.
        progress: called with what each one does.
        start_limit_s: seconds each may take, as `serving.start_timeout_s`.
        names: default `vllm-0`, `vllm-1`, ...

    Raises:
        EngineError: one did not start; the others are stopped.
    """
    chosen = names or [f"vllm-{index}" for index in range(len(commands))]
    servers = [
        VllmServer(command, name=name, log=log_dir / f"{name}.log", start_limit_s=start_limit_s)
        for command, name in zip(commands, chosen, strict=True)
    ]
    tasks = [asyncio.ensure_future(server.start(progress)) for server in servers]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        # Each start stops what it began; only then those that were up already.
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.shield(stop_servers(servers))
        raise
    return servers


async def stop_servers(servers: Sequence[VllmServer]) -> None:
    """Stop servers side by side."""
    await asyncio.gather(*(server.stop() for server in servers))
