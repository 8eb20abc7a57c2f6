"""The record of an agent: everything that is needed to install, start and stop one, as data."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

from agentrl.errors import ConfigError, choices

AgentWire = Literal["chat", "responses", "messages"]
Installer = Literal["npm", "pip"]

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
_PACKAGE = {
    "npm": re.compile(r"(@[\w.-]+/)?[\w.-]+@\d[\w.+-]*"),
    "pip": re.compile(r"[\w.-]+(\[[\w,.-]+\])?==\d[\w.!+]*"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentValues:
    """The values of the placeholders, which differ from rollout to rollout."""

    base_url: str
    """Address of the gateway without a version: `http://127.0.0.1:41234`."""
    key: str
    """Secret of the session, which agents send as their API key."""
    model: str
    """Name under which the policy is served."""
    prompt_file: str
    """File that holds the text of the task."""
    workdir: str
    """Folder that the agent works in, and starts in."""
    home: str
    """Home folder of the agent, empty but for its `files`."""
    bin: str
    """Folder with the programs that were installed; see `HarnessAgent.bin_folder`."""
    context: str
    """Most tokens of a conversation, a number: at this size an agent must have compacted."""
    reply: str
    """Most tokens of one turn, a number: the room to leave for an answer."""


PLACEHOLDERS = tuple(AgentValues.__dataclass_fields__)
_PLACEHOLDER = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessAgent:
    """An agent program: how to install it, to start it, and to see that it has ended.

    `command`, the values of `environment` and the texts of `files` may hold the placeholders
    `{base_url}`, `{key}`, `{model}`, `{prompt_file}`, `{workdir}`, `{home}`, `{bin}`, `{context}`
    and `{reply}`, the fields of `AgentValues`. Other braces are left as they are, so JSON can be
    written as it is.

    Example:
        >>> mine = HarnessAgent(
        ...     name="mine", wire="chat", installer="pip", packages=("my-agent==1.0",),
        ...     command="{bin}/my-agent --model {model} --task-file {prompt_file}",
        ...     version_command="{bin}/my-agent --version",
        ...     environment={"OPENAI_BASE_URL": "{base_url}/v1", "OPENAI_API_KEY": "{key}"},
        ... )
    """

    name: str
    """Unique among the agents; small letters, digits, dots and hyphens."""
    wire: AgentWire
    """Wire over which it asks for turns: chat completions, responses or messages."""
    command: str
    """Shell text that starts it. Values are quoted for the shell, so a placeholder may stand inside
    of `$(...)`, but not between quotes."""
    installer: Installer | None = None
    """Program that installs it; None for an agent that is part of the sandbox."""
    packages: tuple[str, ...] = ()
    """Packages with their exact versions: `name@1.2.3` for npm, `name==1.2.3` for pip."""
    version_command: str = ""
    """Shell text that prints the version, with `{bin}` as its only placeholder; proves that what
    was installed can start."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that it starts with."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts by their path below the home folder: settings that it takes from files alone."""
    finished: frozenset[int] = frozenset({0})
    """Exit statuses of an agent that ended by itself; with any other one it has crashed."""
    versions_tried: tuple[str, ...] = ()
    """Versions that were run against the gateway."""

    def __post_init__(self) -> None:
        """Refuse a record that cannot be installed or started.

        Raises:
            ConfigError: says which field and what it should be.
        """
        if not _NAME.fullmatch(self.name):
            raise self._wrong("name", self.name, "small letters, digits, dots and hyphens")
        if self.wire not in get_args(AgentWire):
            raise self._wrong("wire", self.wire, choices(self.wire, get_args(AgentWire)))
        if not self.command.strip():
            raise self._wrong("command", self.command, "shell text that starts the agent")
        if self.installer is None:
            if self.packages:
                raise self._wrong("installer", None, "'npm' or 'pip', since there are packages")
        elif self.installer not in _PACKAGE:
            raise self._wrong("installer", self.installer, choices(self.installer, _PACKAGE))
        else:
            self._check_packages(self.installer)
        for path in self.files:
            if not path or path.startswith("/") or ".." in path.split("/"):
                raise self._wrong("files", path, "a path below the home folder")
        for key in self.environment:
            if not key or "=" in key or "\0" in key:
                raise self._wrong("environment", key, "the name of a variable")

    @property
    def bin_folder(self) -> str:
        """Folder of the programs, below that of the installation."""
        return "node_modules/.bin" if self.installer == "npm" else "bin"

    @property
    def version(self) -> str:
        """The version of the first package, which is the agent's own; empty without packages."""
        return re.split("==|@", self.packages[0])[-1] if self.packages else ""

    def version_line(self, bin_folder: str) -> str:
        """The command that prints the version."""
        return self.version_command.replace("{bin}", shlex.quote(bin_folder))

    def started(self, values: AgentValues) -> str:
        """The command with its values, quoted for a shell."""
        return _filled(self.command, values, shlex.quote)

    def variables(self, values: AgentValues) -> dict[str, str]:
        """The environment variables with their values."""
        return {key: _filled(text, values, str) for key, text in self.environment.items()}

    def written(self, values: AgentValues) -> dict[str, str]:
        """The files with their values, by path below the home folder."""
        return {path: _filled(text, values, str) for path, text in self.files.items()}

    def _check_packages(self, installer: Installer) -> None:
        form = {"npm": "name@1.2.3", "pip": "name==1.2.3"}[installer]
        if not self.packages:
            raise self._wrong("packages", (), f"at least one, as {form}")
        for package in self.packages:
            if not _PACKAGE[installer].fullmatch(package):
                raise self._wrong("packages", package, f"an exact version, as {form}")
        if not self.version_command.strip():
            raise self._wrong("version_command", "", "shell text that prints the version")

    def _wrong(self, name: str, got: object, expected: str) -> ConfigError:
        return ConfigError(f"agent {self.name!r}: {name} is {got!r}, expected {expected}")


def _filled(text: str, values: AgentValues, written: Callable[[str], str]) -> str:
    known = asdict(values)
    return _PLACEHOLDER.sub(lambda found: written(known[found[1]]), text)
