"""Agents are installed once a user, into a folder of the cache that is whole or does not count.

A folder counts when its mark is there, which is written last, after the installed program has
printed its version. An installation that was killed leaves a folder without a mark, and the next
one begins by removing it. Programs name their folder, so it is never renamed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.machine.files import cache_dir, write_whole
from agentrl_envs.harness.agents.record import HarnessAgent

logger = logging.getLogger(__name__)

INSTALL_LIMIT_S = 900.0
CHECK_LIMIT_S = 120.0
"""Seconds for printing a version; a program compiles itself when it starts for the first time."""
_MARK = ".agentrl-installed.json"
_SHOWN = 1500


def installed(agent: HarnessAgent) -> Path | None:
    """The folder that an agent is installed in; None if it is not, or not whole."""
    folder = _folder(agent)
    return folder if (folder / _MARK).is_file() else None


def install(agent: HarnessAgent) -> Path:
    """Install an agent once, and return its folder; another process that installs it is awaited.

    Raises:
        ConfigError: it is part of the sandbox, its installer is missing or failed, or what came
            does not start or has another version.
    """
    if agent.installer is None:
        raise ConfigError(
            f"agent {agent.name!r} has no packages: it is expected in the sandbox; install it "
            "there, or give the HarnessAgent an installer and packages"
        )
    if (ready := installed(agent)) is not None:
        return ready
    folder = _folder(agent)
    with _only_one(folder):
        if (ready := installed(agent)) is not None:
            return ready
        if folder.exists():
            shutil.rmtree(folder)
        logger.info("installing %s into %s", " ".join(agent.packages), folder)
        for command in _commands(agent, folder):
            _run(agent, command, limit_s=INSTALL_LIMIT_S)
        version = _checked(agent, folder)
        write_whole(folder / _MARK, json.dumps({"version": version}).encode())
    return folder


def _folder(agent: HarnessAgent) -> Path:
    """A folder for these packages; one for other versions is another one."""
    parts = [str(agent.installer), *agent.packages]
    if agent.installer == "pip":  # the environment belongs to this interpreter
        parts += [sys.executable, sys.version]
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=5).hexdigest()
    return cache_dir() / "agents" / f"{agent.name}-{digest}"


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Wait for the lock of a folder; the kernel releases it when its holder dies."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f".{folder.name}.lock").open("w")
    except OSError as error:
        raise ConfigError(
            f"{folder.parent}: {error.strerror or error}; expected a folder that can be written; "
            "AGENTRL_CACHE names another one"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _commands(agent: HarnessAgent, folder: Path) -> Sequence[Sequence[str]]:
    if agent.installer == "npm":
        npm = shutil.which("npm")
        if npm is None:
            raise ConfigError(
                f"agent {agent.name!r} is installed with npm, which is not on the PATH; install "
                "Node.js 20.6 or newer with npm"
            )
        quiet = ("--no-fund", "--no-audit", "--no-update-notifier", "--loglevel=error")
        return [(npm, "install", "--prefix", str(folder), *quiet, *agent.packages)]
    python = str(folder / "bin" / "python")
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    return [
        (sys.executable, "-m", "venv", str(folder)),
        (python, "-m", "pip", "install", *quiet, *agent.packages),
    ]


def _checked(agent: HarnessAgent, folder: Path) -> str:
    """The version that the installed program prints."""
    bin_folder = folder / agent.bin_folder
    with tempfile.TemporaryDirectory(prefix="agentrl-agent-home-") as home:
        variables = {**os.environ, "HOME": home}
        command = ("sh", "-c", agent.version_line(str(bin_folder)))
        said = _run(agent, command, limit_s=CHECK_LIMIT_S, variables=variables)
    wanted = agent.version
    if wanted not in said:
        raise ConfigError(
            f"agent {agent.name!r}: {agent.packages[0]} was installed into {folder}, but "
            f"{agent.version_command!r} does not print {wanted!r}: {said[-_SHOWN:]!r}"
        )
    return wanted


def _run(
    agent: HarnessAgent,
    command: Sequence[str],
    *,
    limit_s: float,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Output of a command that must succeed."""
    shown = " ".join(command)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limit_s,
            env=variables,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"agent {agent.name!r}: {shown} took more than {limit_s:.0f} s; is its registry "
            "reachable from here?"
        ) from None
    except OSError as error:
        raise ConfigError(f"agent {agent.name!r}: {shown}: {error}") from error
    if done.returncode:
        raise ConfigError(
            f"agent {agent.name!r} could not be installed: {shown} ended with exit status "
            f"{done.returncode}:\n{done.stdout.strip()[-_SHOWN:]}"
        )
    return done.stdout
