"""The packages that tests need, in a folder that every sandbox shows read-only."""

from __future__ import annotations

import compileall
import hashlib
import json
import logging
import py_compile
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

DEFAULT_PACKAGES = (
    "pytest", "pytest-mock", "hypothesis", "typing-extensions", "six", "whatever", "pytz",
    "freezegun", "python-dateutil", "parameterized", "mock", "simplejson", "ddt",
)  # fmt: skip
"""What many libraries' tests import. Each is a library that no tasks can be made of."""
_STATED = "environment.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Packages in a folder."""

    folder: Path
    """Goes on `PYTHONPATH`."""
    id: str
    """Hash of `requirements`."""
    requirements: tuple[str, ...]
    """`name==version` of everything in it, sorted."""

    def names(self) -> frozenset[str]:
        """Normalised names of what is in it."""
        return frozenset(item.partition("==")[0] for item in self.requirements)


def make_environment(
    folder: Path,
    packages: Sequence[str] = DEFAULT_PACKAGES,
    *,
    index: str | None = None,
    declared: Callable[[], Sequence[str]] = tuple,
) -> Environment:
    """The environment in `folder`, made with pip if it is not there.

    Only pure-Python wheels are taken: no build code of anybody runs here, and the folder serves
    every machine.

    Args:
        folder: where; what is there must be of the same `packages`.
        packages: requirements as for pip.
        index: URL of a package index; default that of pip's configuration.
        declared: gives requirements that are left out where pip cannot install them as well.

    Raises:
        DataError: pip failed; what it said.
        ConfigError: the folder holds an environment of other packages.
    """
    if (folder / _STATED).exists():
        found = read_environment(folder)
        asked = json.loads((folder / _STATED).read_text())["packages"]
        if sorted(asked) != sorted(packages):
            raise ConfigError(
                f"{folder} was made of {', '.join(sorted(asked))}; asked for "
                f"{', '.join(sorted(packages))}: give another folder, or the same packages"
            )
        return found
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    done = _install(partial, packages, index)
    if done.returncode:
        raise DataError(
            f"pip could not install {', '.join(packages)} as pure-Python wheels: "
            f"{done.stderr.strip()[-600:]}"
        )
    _install_declared(partial, packages, declared(), index)
    shutil.rmtree(partial / "bin", ignore_errors=True)
    pinned = sorted(
        f"{match[1].lower().replace('_', '-')}=={match[2]}"
        for path in partial.glob("*.dist-info")
        if (match := re.match(r"(.+?)-([^-]+)\.dist-info$", path.name))
    )
    stated = {"id": _id(pinned), "requirements": pinned, "packages": sorted(packages)}
    (partial / _STATED).write_text(json.dumps(stated, indent=1))
    compile_packages(partial)
    for path in (partial, *partial.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    partial.replace(folder)
    return read_environment(folder)


def _install_declared(
    partial: Path, packages: Sequence[str], declared: Sequence[str], index: str | None
) -> None:
    """Install what libraries declare they need, all at once or else what can be."""
    if not declared or not _install(partial, [*packages, *declared], index).returncode:
        return
    kept = list(packages)
    for requirement in declared:
        done = _install(partial, [*kept, requirement], index, dry=True)
        if done.returncode:
            logger.warning(
                "%s is not in the test environment: no pure-Python wheel of it goes with the rest; "
                "a library that needs it will be refused",
                requirement,
            )
        else:
            kept.append(requirement)
    done = _install(partial, kept, index)
    if done.returncode:
        raise DataError(f"pip could not install {', '.join(kept)}: {done.stderr.strip()[-600:]}")


def _install(
    partial: Path, packages: Sequence[str], index: str | None, *, dry: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run pip into an empty folder."""
    if not dry:
        shutil.rmtree(partial, ignore_errors=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-compile"]
    command += ["--target", str(partial), "--only-binary", ":all:", "--platform", "any"]
    command += ["--implementation", "py", "--abi", "none", "--python-version", version]
    command += ["--dry-run", "--ignore-installed"] if dry else []
    command += ["--index-url", index] if index else []
    done = subprocess.run([*command, *packages], capture_output=True, text=True, check=False)
    if done.returncode and not dry:
        shutil.rmtree(partial, ignore_errors=True)
    return done


def compile_packages(folder: Path) -> None:
    """Compile what lies in a folder, so that it counts as compiled wherever it is copied to.

    By default compiled files hold the time of their source, which a copy changes; every run of
    pytest would then compile pytest.
    """
    compileall.compile_dir(
        str(folder), quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )


def read_environment(folder: Path) -> Environment:
    """The environment in `folder`.

    Raises:
        DataError: there is none.
    """
    try:
        stated = json.loads((folder / _STATED).read_text())
        return Environment(
            folder=folder.resolve(), id=stated["id"], requirements=tuple(stated["requirements"])
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder} is not a test environment ({error}); make the tasks again, or remove it"
        ) from error


def _id(pinned: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(pinned).encode()).hexdigest()[:16]
