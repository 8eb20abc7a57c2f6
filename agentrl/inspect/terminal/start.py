"""`agentrl inspect --terminal`: the inspector for those who sit at a server without a browser."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence

from rich.text import Text

from agentrl.errors import AgentrlError, ConfigError
from agentrl.inspect.pages.overview import run_entry, run_overview
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_terminal import number, visible
from agentrl.inspect.read.step_list import step_list
from agentrl.plugins.distribution import install_command

_LISTED_STEPS = 20


def show_terminal(readers: Sequence[RunReader]) -> None:
    """Show runs until the user leaves; list them where there is no terminal to draw in.

    Raises:
        ConfigError: Textual is not installed.
    """
    if not _is_terminal():
        for line in plain_listing(readers):
            sys.stdout.write(line.plain.encode(errors="backslashreplace").decode() + "\n")
        return
    try:
        app = importlib.import_module("agentrl.inspect.terminal.app")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise ConfigError(
            "agentrl inspect --terminal needs Textual, which is not installed; run "
            f"{install_command('inspect')}"
        ) from error
    app.TerminalApp(readers).run()


def plain_listing(readers: Sequence[RunReader]) -> Iterator[Text]:
    """Runs, findings and newest steps as plain lines."""
    yield Text("this is no terminal to draw in, so here is a list; agentrl traj shows more")
    for reader in readers:
        try:
            overview = run_overview(reader)
            steps = step_list(reader)
        except AgentrlError as error:
            yield visible(f"{reader.run.id}: {error}")
            continue
        entry = run_entry(reader)
        yield visible(f"{entry['id']}: {entry['state']}, {entry['steps']} steps")
        for verdict in overview["verdicts"]:
            if verdict["status"] in ("warn", "fail"):
                yield visible(f"  {verdict['status']}: {verdict['title']}")
        for step in steps[:_LISTED_STEPS]:
            yield visible(
                f"  {step.kind} step {step.step}: {step.rollouts} rollouts of {step.groups} tasks, "
                f"reward {number(step.reward)}, score {number(step.score)}"
            )
        for note in overview["notes"]:
            yield visible(f"  left out {note}")


def _is_terminal() -> bool:
    return (
        sys.stdin.isatty()
        and sys.stderr.isatty()
        and sys.stdout.isatty()
        and os.environ.get("TERM") != "dumb"
    )
