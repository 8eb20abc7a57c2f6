"""`agentrl serve`: one vLLM server in the foreground, ready for runs."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from agentrl.cli.console.start import open_console, prepare
from agentrl.config import RunConfig, parse_config
from agentrl.config.fleet import VllmServing
from agentrl.config.schema import ModelSection
from agentrl.disk.model_source import model_source
from agentrl.errors import ConfigError, EngineError
from agentrl.machine.web_origin import is_loopback

if TYPE_CHECKING:
    from agentrl.serving.vllm.command import ServerCommand
    from agentrl.serving.vllm.launcher import VllmServer

_LOOK_S = 0.5


def command(
    model: Annotated[
        str, typer.Argument(help="Checkpoint, hub name, run directory, or 'quickstart'.")
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[key=value]...",
            help="Keys of the serving section (kv_cache_gb=2), or vLLM's own options "
            "(tensor_parallel_size=2).",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where to listen.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    max_context: Annotated[
        int, typer.Option(min=16, help="Most tokens of prompt and turn together.")
    ] = 8192,
    dtype: Annotated[str, typer.Option(help="Of the weights, as model.dtype.")] = "auto",
    head_dtype: Annotated[
        str, typer.Option(help="Of the logits, as model.head_dtype: model or float32.")
    ] = "model",
    log: Annotated[Path | None, typer.Option(help="File for what the server prints.")] = None,
) -> None:
    """Start one vLLM server in the foreground; Ctrl-C ends it."""
    from agentrl.machine.processes.stop import Interrupted
    from agentrl.serving.vllm.launcher import VllmServer

    prepare()
    config = _settings(model, options or [], head_dtype)
    section = config.serving
    assert section.engine == "vllm"
    server = VllmServer(
        _command(config.model, section, max_context, dtype),
        name="server",
        log=log or Path(tempfile.gettempdir()) / f"agentrl-serve-{port}.log",
        host=host,
        port=port,
        start_limit_s=section.start_timeout_s,
    )
    console = open_console()
    try:
        asyncio.run(_serve(server, console, host))
    except Interrupted as stop:
        console.print("stopped")
        raise typer.Exit(128 + stop.signal) from None


def _settings(model: str, options: list[str], head_dtype: str) -> RunConfig:
    """A config of which only `model.path` and `serving` are used."""
    words = []
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise ConfigError(f"expected key=value, got {option!r}")
        key = key.removeprefix("serving.").lstrip("-").replace("-", "_")
        known = key.partition(".")[0] in VllmServing.model_fields
        words.append(f"serving.{key if known else f'args.{key}'}={value}")
    data = {
        "run": {"name": "serve"},
        "model": {"path": model, "head_dtype": head_dtype},
        "env": {"target": "none:None"},
        "dataset": {"source": "none.jsonl"},
        "serving": {"engine": "vllm"},
    }
    return parse_config(data, words, where="the command line")


def _command(
    model: ModelSection, section: VllmServing, max_context: int, dtype: str
) -> ServerCommand:
    from agentrl.runtime.assembly.engines import LEAN
    from agentrl.serving.lean.vllm_app import SECRET_VARIABLE
    from agentrl.serving.vllm.command import server_command

    return server_command(
        section,
        model_path=model_source(model),
        max_context_tokens=max_context,
        dtype=dtype,
        head_dtype=model.head_dtype,
        # Clients must know the secret; without one no client can connect.
        middleware=(LEAN,) if os.environ.get(SECRET_VARIABLE) else (),
    )


async def _serve(server: VllmServer, console: Console, host: str) -> None:
    """Start the server, print its usage, and wait for a signal or its end."""
    from agentrl.machine.processes.stop import StopSwitch

    switch = StopSwitch()

    def progress(name: str, text: str) -> None:
        console.print(f"{name}: {text}", markup=False, soft_wrap=True)

    async def work() -> None:
        await server.start(progress)
        for line in _usage_lines(server, host):
            console.print(line, markup=False, soft_wrap=True)
        while server.running:
            await asyncio.sleep(_LOOK_S)
        raise EngineError(f"the server has ended; the end of {server.log}:\n{server.tail()}")

    with switch.on_signals():
        try:
            await switch.guard(work())
        finally:
            await server.stop()


def _usage_lines(server: VllmServer, host: str) -> list[str]:
    lines = [
        f"what it prints goes to {server.log}",
        "to use it, write in a run file:",
        "serving:",
        "  engine: external",
        f'  urls: ["{server.url}"]',
    ]
    if not is_loopback(host):
        lines.append(
            f"anyone who reaches {host} can replace its weights: keep it behind a firewall"
        )
    return lines
