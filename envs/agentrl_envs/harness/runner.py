"""One run of an agent program in a sandbox: what it is given, how it ends, what it printed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.env import ModelEndpoint, PlayedProgram
from agentrl.errors import EnvError
from agentrl.sandbox import ExecResult, Outcome, Process, Sandbox
from agentrl.types import Termination
from agentrl_envs.harness.agents import AgentValues, HarnessAgent

TAIL_BYTES = 16 * 2**10
"""Bytes of what the agent printed that are kept, its last ones."""
SHOWN_CHARS = 1500
"""Characters of it in the reason of a rollout."""
_READ_S = 3600.0
_OF_INSTALLER = {"npm": {"NODE_OPTIONS": "--disable-wasm-trap-handler"}}
"""Variables of programs by their installer. Node would reserve 10 GiB of addresses to check bounds
of WebAssembly with, more than a sandbox with less memory has."""
_PREPARE = """
bin=$1; folder=$2
if [ -n "$bin" ] && ! [ -d "$bin" ]; then exit 3; fi
if ! [ -d "$folder" ]; then exit 4; fi
if [ -z "$HOME" ] || ! [ -w "$HOME" ]; then HOME=$PWD/.agent-home; fi
mkdir -p "$HOME/.agentrl" && cd "$HOME" && pwd
"""
_WRITE = 'mkdir -p "$(dirname "$1")" && cat > "$1"'


@dataclass(slots=True, kw_only=True)
class AgentRun:
    """An agent in its sandbox."""

    agent: HarnessAgent
    """What runs."""
    sandbox: Sandbox
    """Where it runs."""
    bin: str
    """Folder of its programs inside; empty for one that is part of the sandbox."""
    folder: str
    """Folder that it starts in, below the work directory."""
    prompt: str
    """Text of the task."""
    variables: Mapping[str, str]
    """Environment variables beside its own."""
    home: str = ""
    """Its home folder; known once `prepare` was called."""
    printed: str = ""
    """The end of what it printed."""
    status: int | None = None
    """Its exit status; None where it was stopped."""
    outcome: Outcome | None = None
    """The way in which it ended; None where it was stopped."""

    @property
    def crashed(self) -> bool:
        """True if it ended, and not as one that has finished."""
        return self.outcome is not None and self.status not in self.agent.finished

    async def prepare(self) -> None:
        """See that it can start, before a turn is sampled.

        Raises:
            EnvError: its programs or its folder are not in the sandbox.
            SandboxError: the sandbox failed.
        """
        place = self.folder or "."
        found = await self.sandbox.exec(("sh", "-c", _PREPARE, "sh", self.bin, place))
        if found.exit_code == 3:
            raise EnvError(
                f"agent {self.agent.name!r}: the sandbox shows no folder {self.bin}; name it or a "
                "folder above it in sandbox.read_only (bubblewrap, userns), or install the agent "
                "in the image and say with env.args.bin where"
            )
        if found.exit_code == 4:
            raise EnvError(
                f"agent {self.agent.name!r}: the environment that grades made no folder {place!r}; "
                "say with env.args.folder where the agent starts"
            )
        self.home = _good(found, "make its home folder").strip()

    async def play(self, endpoint: ModelEndpoint) -> PlayedProgram:
        """Run it to its end; see `ProgramEnv.play`."""
        port = await self.sandbox.listen(endpoint.make_protocol)
        try:
            workdir = f"{self.sandbox.workdir}/{self.folder}".rstrip("/")
            values = AgentValues(
                base_url=f"http://{port.host}:{port.port}",
                key=endpoint.key,
                model=endpoint.model,
                prompt_file=f"{self.home}/.agentrl/prompt.md",
                workdir=workdir,
                home=self.home,
                bin=self.bin,
                context=str(endpoint.context_tokens),
                reply=str(endpoint.reply_tokens),
            )
            await self._write(values.prompt_file, self.prompt)
            for path, text in self.agent.written(values).items():
                await self._write(f"{self.home}/{path}", text)
            # Some agents read their input to its end before they begin.
            command = f"exec </dev/null\n{self.agent.started(values)}"
            process = await self.sandbox.start(
                ("sh", "-c", command),
                cwd=self.folder or None,
                env={
                    "HOME": self.home,
                    **_OF_INSTALLER.get(str(self.agent.installer), {}),
                    **self.agent.variables(values),
                    **self.variables,
                },
            )
            await self._until_ended(process)
        finally:
            await port.close()
        return self._played(endpoint.turns())

    async def _until_ended(self, process: Process) -> None:
        tail = b""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    data = await process.read(timeout_s=_READ_S)
                    if not data:
                        break
                    tail = (tail + data)[-TAIL_BYTES:]
            self.outcome = process.outcome
        finally:
            self.printed = tail.decode("utf-8", "replace")
            # To the end also when it is stopped: nothing of it runs while its work is judged.
            status = await asyncio.shield(process.close())
        self.status = status
        if self.outcome is None:
            self.outcome = Outcome.OK if status == 0 else Outcome.NONZERO

    async def _write(self, path: str, text: str) -> None:
        command = ("sh", "-c", _WRITE, "sh", path)
        _good(await self.sandbox.exec(command, stdin=text.encode()), f"write {path}")

    def _played(self, turns: int) -> PlayedProgram:
        if self.outcome is Outcome.OOM:
            return PlayedProgram(
                termination=Termination.OOM, detail=f"{self.agent.name} ran out of memory"
            )
        if turns and not self.crashed:
            return PlayedProgram()
        how = "was killed" if self.status is None else f"ended with exit status {self.status}"
        said = self.printed.strip()[-SHOWN_CHARS:]
        said = f" and printed: {said}" if said else " and printed nothing"
        return PlayedProgram(detail=f"{self.agent.name} {how}{said}")


def _good(result: ExecResult, what: str) -> str:
    if result.exit_code != 0:
        raise EnvError(
            f"the sandbox of an agent could not {what}: {result.outcome}, exit status "
            f"{result.exit_code}: {(result.stderr or result.stdout)[-400:]!r}; is there a shell in "
            "it, and are sandbox.limits large enough?"
        )
    return result.stdout
