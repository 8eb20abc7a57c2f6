"""The `agentrl` command line and its list of commands.

Each command lives in a module of its own and is imported only when it is asked for, so that
`agentrl --help` takes a fraction of a second and never loads torch.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable, Sequence
from inspect import getdoc
from pathlib import Path

import typer

from agentrl import __version__
from agentrl.cli.console import failures
from agentrl.disk.logs import quiet_libraries
from agentrl.plugins.distribution import other_program
from agentrl.plugins.leaving import end_in_time

COMPLETION, HELP = "completion", "help"
_BEFORE, _DURING, _AFTER = "Before a run", "A run", "After a run, or beside it"
_TASKS, _MACHINES = "Environments and tasks", "Machines"

_COMMANDS = {
    "preflight": (_BEFORE, "Check that a run can begin and can work, before a model is loaded."),
    "prove": (_BEFORE, "Prove that a loss has one gradient and the right direction."),
    "fit": (_BEFORE, "Train on data: conversations (SFT), pairs (DPO), reward models."),
    "coldstart": (_BEFORE, "Teach a model to call tools from solutions, and write the run for RL."),
    "train": (_DURING, "Train a policy from a run file."),
    "eval": (_DURING, "Score a policy on held-out tasks."),
    "rollout": (_DURING, "Collect trajectories without training."),
    "control": (_DURING, "Answer a paused run, or let servers join and leave a live one."),
    "inspect": (_AFTER, "Look at runs in the browser, or in the terminal."),
    "doctor": (_AFTER, "Read a run and say what is wrong with it, why, and what to change."),
    "replay": (_AFTER, "Recompute a recorded step, and say what is not what it was."),
    "profile": (_AFTER, "Train a recorded step under a profiler, and write its trace."),
    "mismatch": (_AFTER, "Trace what the sampler and the trainer disagree on to a cause."),
    "export": (_AFTER, "Write a checkpoint of a run as one model directory."),
    "serve": (_MACHINES, "Start one vLLM server by hand."),
    COMPLETION: (_MACHINES, "Print what makes a shell complete commands, options and keys."),
}
"""Single commands: module of the same name with a function `command`, with the panel and the text
of the overview; the docstring of the function is the help of the command itself."""

_GROUPS = {
    "config": (_BEFORE, "Show the keys and values of run files."),
    "chat": (_BEFORE, "See how conversations and tool calls become the ids of a model."),
    "judge": (_BEFORE, "Measure a judge, or any reward function, against labels."),
    "traj": (_AFTER, "Look at stored trajectories."),
    "prefs": (_AFTER, "Make preference pairs of stored rollouts; check and balance pairs."),
    "rm": (_AFTER, "Measure reward models, and score answers with them."),
    "env": (_TASKS, "Make, play and check environments."),
    "harness": (_TASKS, "Install agents that are trained as they are."),
    "tasks": (_TASKS, "Make data sets of tasks, and check them."),
    "gateway": (_DURING, "Serve the policy to agents that live elsewhere."),
    "sandbox": (_MACHINES, "See which sandboxes work on this machine."),
    "simulate": (_MACHINES, "Compare settings on a model before renting machines."),
}
"""Groups of commands: module or package of the same name with a Typer `app`; else the same."""

_FORMER = {
    **{("traj", "--output"): "--out", ("rm", "--eval-out"): "--out", ("env", "--dir"): "--out"},
    **{(command, "--n"): "--limit" for command in ("rollout", "gateway")},
}
"""Names that options had, by command: what is written goes to `--out` everywhere, `--limit` counts
tasks and `--n` rollouts of each."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit status.

    0 is success; 1 an unexpected error, or findings of a check; 2 a mistake in what was asked; 130
    and 143 an interruption by Ctrl-C and SIGTERM.
    """
    whole_process = arguments is None
    if arguments is None:
        arguments = sys.argv[1:]
        signal.signal(signal.SIGINT, _leave)
        quiet_libraries()
        other = other_program()
        if other is not None:
            sys.stderr.write(f"warning: {other}\n")
    words = list(arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if words[:1] == [HELP]:
        words = [*words[1:], "--help"]
    name = next((word for word in words if not word.startswith("-")), "")
    words = [_today(name, word) for word in words]
    try:
        _app(name)(words)
    except SystemExit as end:
        if whole_process:
            end_in_time(end.code if isinstance(end.code, int) else int(bool(end.code)))
        raise
    except Exception as error:  # the outermost boundary: everything becomes one message
        status = failures.report(error, debug=debug)
        if whole_process:
            end_in_time(status)
        raise SystemExit(status) from None


def _leave(number: int, frame: object) -> None:
    """Ctrl-C outside of a run, where there is nothing to finish."""
    raise SystemExit(128 + number)


def _today(command: str, word: str) -> str:
    """A word of the line with the name that its option has today."""
    option, *value = word.split("=", 1)
    return "=".join([_FORMER.get((command, option), option), *value])


def _app(name: str) -> typer.Typer:
    """The whole command line, with only the command `name` really imported.

    Completion knows all of them, and imports all.
    """
    app = typer.Typer(
        name="agentrl",
        help="Train language models to act: many turns, real tools, rewards computed by code.",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def root(
        debug: bool = typer.Option(
            False, "--debug", help="Show tracebacks; may stand anywhere on the line."
        ),
        version: bool = typer.Option(
            False,
            "--version",
            help="Print the version and where it lies.",
            callback=_version,
            is_eager=True,
        ),
    ) -> None:
        """Train language models to act: many turns, real tools, rewards computed by code."""

    for command, (panel, text) in _COMMANDS.items():
        if command == name or name == COMPLETION:
            module = importlib.import_module(f"agentrl.cli.{command}")
            full = _help_of(module.command)
            decorate = app.command(command, help=full, short_help=text, rich_help_panel=panel)
            decorate(module.command)
        else:
            app.command(command, help=text, rich_help_panel=panel)(_not_loaded)
    for group, (panel, text) in _GROUPS.items():
        if group == name or name == COMPLETION:
            loaded = importlib.import_module(f"agentrl.cli.{group}").app
            app.add_typer(loaded, name=group, rich_help_panel=panel)
        else:
            app.add_typer(typer.Typer(), name=group, help=text, rich_help_panel=panel)
    text = f"Show the help of a command: agentrl {HELP} traj show."
    app.command(HELP, help=text, rich_help_panel=_MACHINES)(_not_loaded)
    return app


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"agentrl {__version__} ({Path(__file__).parents[1]})")
        raise typer.Exit


def _help_of(command: Callable[..., None]) -> str:
    """The docstring with the lines of a paragraph joined: typer keeps every line break."""
    paragraphs = (getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _not_loaded() -> None:
    """Stands for a command in the overview; never called."""
