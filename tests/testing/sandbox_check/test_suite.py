"""The suite is worth something only if a bad sandbox fails it: here is a bad one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.sandbox import (
    ExecResult,
    Isolation,
    Outcome,
    Probe,
    Process,
    Sandbox,
    SandboxBackend,
    SandboxLimits,
    Snapshot,
)
from agentrl.testing.sandbox_check.suite import run_suite
from agentrl.types.finding import Status


class CarelessProcess(Process):
    """A child process with a thread that reads all it prints into memory."""

    def __init__(self, command: Sequence[str], workdir: str) -> None:
        self._child = subprocess.Popen(
            list(command),
            cwd=workdir,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._seen = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        while data := os.read(self._child.stdout.fileno(), 65536):
            self._seen += data

    async def write(self, data: bytes) -> None:
        assert self._child.stdin is not None
        await asyncio.to_thread(self._child.stdin.write, data)
        await asyncio.to_thread(self._child.stdin.flush)

    async def read(self, *, timeout_s: float) -> bytes:
        for _ in range(int(timeout_s / 0.01) + 1):
            if self._seen or not self._reader.is_alive():
                break
            await asyncio.sleep(0.01)
        data, self._seen = self._seen, bytearray()
        return bytes(data)

    async def interrupt(self) -> None:
        os.killpg(self._child.pid, signal.SIGINT)

    async def close(self) -> int | None:
        self._child.kill()
        return self._child.wait()

    def tidy(self) -> None:
        """For the test: leave no pipe behind."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            self._child.communicate(timeout=60)


class Careless(Sandbox):
    """What one writes in ten minutes: a subprocess in a temporary directory."""

    def __init__(self, limits: SandboxLimits) -> None:
        self.limits = limits
        self.workdir = tempfile.mkdtemp(prefix="careless-")
        self.processes: list[CarelessProcess] = []

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        def run() -> tuple[Outcome, int | None, bytes, bytes]:
            try:
                done = subprocess.run(
                    list(command),
                    input=stdin,
                    capture_output=True,
                    timeout=timeout_s,
                    cwd=self.workdir,
                    env={**os.environ, **(env or {})},
                )
            except subprocess.TimeoutExpired as error:
                return Outcome.TIMEOUT, None, error.stdout or b"", error.stderr or b""
            except OSError as error:
                return Outcome.NONZERO, 127, b"", str(error).encode()
            ended = Outcome.NONZERO if done.returncode else Outcome.OK
            return ended, done.returncode, done.stdout, done.stderr

        outcome, code, out, err = await asyncio.to_thread(run)
        return ExecResult(
            outcome=outcome,
            exit_code=code,
            stdout=out.decode(errors="replace"),
            stderr=err.decode(errors="replace"),
            duration_s=0.0,
        )

    async def start(
        self,
        command: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        self.processes.append(CarelessProcess(command, self.workdir))
        return self.processes[-1]

    async def download(self, source: str, *, max_bytes: int) -> dict[str, bytes]:
        top = Path(self.workdir, source)
        return {
            str(path.relative_to(top)): path.read_bytes()
            for path in top.rglob("*")
            if path.is_file()
        }

    async def reset(self) -> None:
        shutil.rmtree(self.workdir)
        Path(self.workdir).mkdir()

    async def read_file(self, path: str, *, max_bytes: int = 2**20) -> bytes:
        return Path(self.workdir, path).read_bytes()

    async def write_file(self, path: str, data: bytes) -> None:
        Path(self.workdir, path).write_bytes(data)

    async def upload(self, source: Path, target: str) -> None:
        shutil.copytree(source, Path(self.workdir, target))

    async def snapshot(self) -> Snapshot:
        raise AssertionError("not reached by these checks")

    async def close(self) -> None:
        # Without its directory, a process that outlived its command ends by an error. Until then it
        # writes files, also between the last look into the directory and its removal.
        for _ in range(100):
            shutil.rmtree(self.workdir, ignore_errors=True)
            if not Path(self.workdir).exists():
                break
        else:
            raise AssertionError(f"{self.workdir} cannot be removed")
        for process in self.processes:
            await asyncio.to_thread(process.tidy)


class CarelessBackend(SandboxBackend):
    """Claims namespaces, too."""

    name = "careless"

    async def probe(self) -> Probe:
        return Probe(available=True, isolation=Isolation.NAMESPACES, detail="it says")

    async def create(
        self, limits: SandboxLimits, snapshot: Snapshot | None = None, *, image: str = ""
    ) -> Sandbox:
        return Careless(limits)

    async def close(self) -> None:
        return


FAULTS = (
    "environment_is_cut_off",
    "bad_requests_are_refused",
    "exit_kills_daemons",
    "long_output_keeps_both_ends",
    "traversal_is_refused",
    "links_that_lead_out",
    "size_limit_of_a_read",
    "upload_of_a_link_that_leads_out",
    "host_files_are_invisible",
    "network_is_cut_off",
    "host_processes_are_out_of_reach",
    "no_privileges",
    "closing_twice",
    "session_silence_is_a_timeout",
    "session_end_is_seen",
    "session_interrupt",
    "session_close_kills_everything",
    "session_flood",
    "session_ends_with_its_sandbox",
    "download_of_a_tree",
    "size_limit_of_a_download",
    "download_from_elsewhere",
    "write_keeps_permissions",
    "lifetime_ends_a_sandbox",
    "reset_kills_everything",
)
HARMLESS = (
    "output_is_captured",
    "exit_status_is_kept",
    "missing_program_is_a_result",
    "session_outlives_wall_s",
)


async def test_a_careless_sandbox_is_found_out() -> None:
    # A bad sandbox is waited for in vain. Nothing that is harmless may take so short a time.
    results = await run_suite(CarelessBackend(), names=FAULTS, at_once=4, soon_s=4.0)
    results += await run_suite(CarelessBackend(), names=HARMLESS)
    verdicts = {result.check.name: result.status for result in results}
    missed = [name for name in FAULTS if verdicts[name] is not Status.FAIL]
    assert not missed, f"these checks pass although the sandbox is open: {missed}"
    assert all(verdicts[name] is Status.OK for name in HARMLESS)
    assert all(result.detail for result in results if result.status is Status.FAIL)


async def test_an_unknown_check_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fork_bomb'"):
        await run_suite(CarelessBackend(), names=["fork_bom"])
