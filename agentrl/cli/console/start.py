"""First steps of every command: console, warnings, config."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from agentrl.config import RunConfig, load_config, parse_config
from agentrl.config.fit import FitConfig
from agentrl.config.load import FIT_FILE
from agentrl.disk.logs import quiet_libraries
from agentrl.disk.run_directory import models_of_run, read_fit_identity, read_identity
from agentrl.disk.run_name import free_name
from agentrl.inspect.read.safe_terminal import visible

_OF_A_KIND = 3
"""Warnings with the same template shown on the terminal."""


def open_console(*, stderr: bool = False) -> Console:
    """A terminal, or plain text where output goes to a file or a pipe."""
    return Console(stderr=stderr, highlight=False)


def prepare() -> None:
    """Quiet libraries, and show warnings of agentrl itself on stderr.

    Python warnings go to the log (`run.log` of a run), not to the terminal: they speak to the
    developers of the library that raised them.
    """
    quiet_libraries()
    logging.captureWarnings(True)
    warnings.simplefilter("default")
    noise = logging.getLogger("py.warnings")
    noise.addHandler(logging.NullHandler())
    show_warnings(open_console(stderr=True))


def show_warnings(console: Console) -> None:
    """Send agentrl's own warnings to `console`; a live view passes its own so lines do not mix."""
    logger = logging.getLogger("agentrl")
    for handler in list(logger.handlers):
        if isinstance(handler, _TerminalHandler):
            logger.removeHandler(handler)
    logger.addHandler(_TerminalHandler(console))


class _TerminalHandler(RichHandler):
    """Short: no tracebacks, and no more than a few of a kind; `run.log` has them all."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            console=console, level=logging.WARNING, show_time=False, show_path=False, markup=False
        )
        self._seen: Counter[tuple[str, str]] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        kind = (record.name, str(record.msg))
        self._seen[kind] += 1
        if self._seen[kind] > _OF_A_KIND:
            return
        first_line = record.getMessage().partition("\n")[0]
        super().emit(_with_text(record, first_line))
        if self._seen[kind] == _OF_A_KIND:
            text = f"more of this kind from {record.name} go to run.log only"
            super().emit(_with_text(record, text))

    def render_message(self, record: logging.LogRecord, message: str) -> Text:
        """Spelled out where it would not print: it may quote an environment, a tool or a model."""
        return visible(message)


def _with_text(record: logging.LogRecord, text: str) -> logging.LogRecord:
    values = {**record.__dict__, "msg": text, "args": (), "exc_info": None, "exc_text": None}
    return logging.makeLogRecord(values)


def read_config(
    path: Path, overrides: list[str], *, with_models: bool = False
) -> tuple[RunConfig, Path]:
    """A run file, or the stored config of a run directory, and where its relative paths start.

    Args:
        path: of the file or the directory.
        overrides: `section.key=value`; they win.
        with_models: whether paths of other runs stand for the checkpoints that a run directory
            began with, rather than for the latest ones there. Not to go on with a run, whose
            config is compared with the stored one.

    Raises:
        AgentrlError: it is neither.
    """
    if path.is_dir():
        config, base = read_identity(path)
        if with_models:
            config = models_of_run(path, config)
        return parse_config(config.model_dump(mode="json"), overrides, where=str(path)), base
    return load_config(path, overrides), path.resolve().parent


def read_fit(path: Path, overrides: list[str]) -> tuple[FitConfig, Path]:
    """As `read_config`, of a fit file or the run directory of a fit."""
    if path.is_dir():
        config, base = read_fit_identity(path)
        return FIT_FILE.parse(config.model_dump(mode="json"), overrides, where=str(path)), base
    return FIT_FILE.load(path, overrides), path.resolve().parent


def free_directory(parent: str, name: str) -> Path:
    """The first of NAME, NAME-2, NAME-3, ... below `parent` that does not exist."""
    path = Path(parent).expanduser() / name
    return path.with_name(free_name(path)) if path.exists() else path
