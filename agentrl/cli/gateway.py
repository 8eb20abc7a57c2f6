"""The `agentrl gateway` commands: the policy for agents that live elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from agentrl.cli.console.options import Overrides, RunFile, model_of, watched
from agentrl.cli.console.start import free_directory, open_console, prepare, read_config
from agentrl.config.yaml_text import dump_yaml
from agentrl.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Serve the policy to agents that live elsewhere.")

_TARGET = "agentrl.gateway.outside:OutsideAgent"


@app.callback()
def group() -> None:
    """Serve the policy to agents that live elsewhere."""


@app.command()
def serve(
    config: RunFile,
    overrides: Overrides = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Where to listen.")] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen at; 127.0.0.1 where nothing is said.")
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option(
            help="Variable that holds the access token; default AGENTRL_GATEWAY_TOKEN, or one that "
            "is made and printed where only this machine can ask."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another name by which agents reach this machine; may be given again."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help="Only the first so many tasks; 0: those that agents bring alone."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Directory for the rollouts, where nothing is trained."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that trains, also after kill -9.")
    ] = False,
) -> None:
    """Serve the policy of a run file; agents ask for a task, play it, and post its reward.

    With train.steps above 0 the run trains on their rollouts, as agentrl train does on those of an
    environment. With train.steps=0 the rollouts are recorded, each group as soon as it has ended,
    and agents may bring tasks of their own.
    """
    from agentrl.gateway.outside import PORT, TOKEN_ENV, gateway_token

    prepare()
    settings, _ = read_config(config, overrides or [])
    if settings.runtime.kind != "local" or settings.runtime.worker_processes:
        raise ConfigError(
            "agents from outside come to one port, so all rollouts must be in one process; set "
            "runtime.kind=local and runtime.worker_processes=0"
        )
    if not isinstance(settings.rollout.side_calls, str):
        raise ConfigError(
            "rollout.side_calls names a served model, but side calls of agents from outside are "
            "answered by the policy; set rollout.side_calls: train or context"
        )
    args: dict[str, Any] = dict(settings.env.args) if settings.env.target == _TARGET else {}
    given = {"host": host, "port": port, "token_env": token_env, "allow_hosts": allow_host}
    args |= {name: value for name, value in given.items() if value is not None}
    args.setdefault("side_calls", settings.rollout.side_calls)
    words = [
        *(overrides or []),
        f"env.target={_TARGET}",
        "env.args={}",  # those of another environment
        *(f"env.args.{name}={dump_yaml(value)}" for name, value in args.items()),
    ]
    where = f"http://{args.get('host', '127.0.0.1')}:{args.get('port', PORT)}"
    console = open_console()
    token = gateway_token(args.get("token_env", TOKEN_ENV), host=str(args.get("host", "127.0.0.1")))
    console.print(
        f"agents get a rollout with: curl -X POST -H 'x-agentrl-token: {token}' "
        f"{where}/sessions/next",
        markup=False,
        soft_wrap=True,
    )
    if settings.train.steps > 0:
        from agentrl.cli.train import train_from

        raise typer.Exit(train_from(config, words, resume=resume, inspect=False))
    _record(config, words, args, limit=limit, out=out)


def _record(
    config: Path, words: list[str], args: dict[str, Any], *, limit: int | None, out: Path | None
) -> None:
    from agentrl.gateway.outside import OutsideAgent
    from agentrl.runtime.sampling.sample import collect

    settings, base = read_config(config, words)
    target = out or free_directory(settings.run.dir, f"{settings.run.name}-gateway")
    console = open_console()
    console.print(f"rollouts go to {target}", markup=False, soft_wrap=True)
    made = watched(
        console,
        lambda progress: collect(
            settings,
            base=base,
            model_path=model_of(None, config),
            tasks=limit,
            out=target,
            progress=progress,
            each_stored=True,
            taking_tasks=lambda begin, most: OutsideAgent(**args).taking_tasks(begin, most=most),
        ),
        stopped=f"stopped; what had ended is in {target}",
    )
    reward = "none" if made.mean_reward is None else f"{made.mean_reward:.3f}"
    console.print(f"{made.rollouts} rollouts, {made.trusted} scored, mean reward {reward}")
    console.print(f"look at them: agentrl traj show {target}", markup=False, soft_wrap=True)
