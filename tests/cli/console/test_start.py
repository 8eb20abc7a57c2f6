"""What the terminal shows of a warning that quotes an environment or a tool."""

from __future__ import annotations

import io
import logging

from rich.console import Console

from agentrl.cli.console.start import show_warnings


def test_a_warning_cannot_command_the_terminal() -> None:
    shown = io.StringIO()
    show_warnings(Console(file=shown, force_terminal=True, color_system=None, width=200))
    logger = logging.getLogger("agentrl.rollout.worker")
    try:
        logger.warning("env_crashed: %s", "boom \x1b[31m\x1b]0;title\x07 [bold]text[/bold]")
    finally:
        show_warnings(Console(stderr=True))
    assert "\x1b" not in shown.getvalue()
    assert "\x07" not in shown.getvalue()
    assert "boom \\e[31m\\e]0;title\\x07 [bold]text[/bold]" in shown.getvalue()
