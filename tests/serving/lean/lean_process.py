"""A lean server in a process of its own, for tests that stop and kill it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agentrl.serving.lean import EngineServer
from agentrl.testing import ByteTokenizer, ScriptedEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class LeanProcess:
    """A server that says "hello" after a while."""

    address: str
    secret: str
    process: subprocess.Popen[str]


@contextmanager
def lean_process(*, delay_s: float) -> Iterator[LeanProcess]:
    process = subprocess.Popen(
        [sys.executable, __file__, str(delay_s)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield LeanProcess(**json.loads(process.stdout.readline()), process=process)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def main(delay_s: float) -> None:
    engine = ScriptedEngine(["hello"], ByteTokenizer(), delay_s=delay_s)
    async with EngineServer(engine) as server:
        line = json.dumps({"address": server.address, "secret": server.secret})
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
