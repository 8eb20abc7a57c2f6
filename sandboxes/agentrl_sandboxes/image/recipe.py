"""The contents of an image, and the hash by which a second build sees that it is there."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from agentrl.errors import ConfigError

LABEL = "agentrl.recipe"
"""Label of an image made here; its value is `Recipe.digest`."""
PACKAGES = ("git", "patch", "procps", "python3", "python3-pip")
"""Debian packages beside the minimal system, which has a shell, coreutils, grep, sed and tar."""
PYTHON_PACKAGES = ("pytest",)
"""Python packages; pytest, because most tasks are graded by tests."""
VERSION = 1
"""Raised when the way an image is made changes, so that older ones are made again."""
USER = "sandbox"
"""A name for the ordinary user that commands run as."""
UID = 1000
"""The id of that user."""

_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?([<>=!~][^\s;]*)?")
_NAME = re.compile(r"[a-z0-9]+([._/-]+[a-z0-9]+)*(:[0-9]+/[a-z0-9._/-]+)?(:[A-Za-z0-9_.-]{1,128})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The contents of one image."""

    name: str = "agentrl-sandbox"
    """Reference under which Docker knows it, with or without a tag."""
    packages: tuple[str, ...] = ()
    """Debian packages beside `PACKAGES`."""
    python_packages: tuple[str, ...] = ()
    """Python requirements beside `PYTHON_PACKAGES`."""
    suite: str = "bookworm"
    """Release of Debian."""

    def __post_init__(self) -> None:
        _check("--name", self.name, _NAME, "a reference of lower-case letters, as team/sandbox:1")
        _check("--suite", self.suite, _PACKAGE, "a release of Debian, as bookworm")
        for package in self.packages:
            _check("--packages", package, _PACKAGE, "the name of a Debian package, as ripgrep")
        for requirement in self.python_packages:
            _check("--python-packages", requirement, _REQUIREMENT, "a requirement, as numpy>=2")

    @property
    def repository(self) -> str:
        """The name without its tag."""
        return self._parts[0]

    @property
    def tag(self) -> str:
        """The tag; `latest` unless the name has one."""
        return self._parts[1]

    @property
    def _parts(self) -> tuple[str, str]:
        head, colon, tail = self.name.rpartition(":")
        return (head, tail) if colon and "/" not in tail else (self.name, "latest")

    @property
    def all_packages(self) -> list[str]:
        """Every Debian package asked for."""
        return sorted({*PACKAGES, *self.packages})

    @property
    def all_python_packages(self) -> list[str]:
        """Every Python requirement asked for."""
        return sorted({*PYTHON_PACKAGES, *self.python_packages})

    @property
    def digest(self) -> str:
        """Hash of what was asked for; versions of packages are those of the day of the build."""
        parts = [VERSION, self.suite, self.all_packages, self.all_python_packages]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the image."""
        return {
            LABEL: self.digest,
            "agentrl.packages": " ".join(self.all_packages),
            "agentrl.python_packages": " ".join(self.all_python_packages),
        }


def _check(option: str, value: str, pattern: re.Pattern[str], wanted: str) -> None:
    if not pattern.fullmatch(value):
        raise ConfigError(f"image build {option}: got {value!r}, expected {wanted}")
