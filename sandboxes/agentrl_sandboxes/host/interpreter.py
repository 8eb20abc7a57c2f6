"""The Python that supervisors run: this process's own, in place or packed to be carried elsewhere.

A namespace sandbox shows it where it lies. A container has another root, perhaps with another C
library or none, so there it comes as a `PackedInterpreter`: the program, the libraries it loads,
the loader that finds them, and the modules that the guest imports, nothing else of the standard
library. Started through its own loader with its own library path, it uses no file of the image.
"""

from __future__ import annotations

import hashlib
import io
import json
import marshal
import os
import re
import stat
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from functools import cache
from importlib.util import MAGIC_NUMBER
from pathlib import Path

from agentrl.errors import SandboxUnavailable
from agentrl_sandboxes.host.channel import BOOT, guest_modules

FLAGS = ("-I", "-S")
"""Isolated from environment, site packages and the current directory."""
PACKED_FLAGS = (*FLAGS, "-X", "utf8")
"""Without the variables of a locale, which would decide what else is imported."""
START = "start"
"""The last member of a `PackedInterpreter`: once it is there, all others are."""
SURVEY_S = 30.0
"""How long the interpreter may take to say what it has loaded; 0.05 s on an idle machine."""

SURVEY = """
import ctypes, marshal, sys
for name, code in marshal.loads(sys.stdin.buffer.read()):
    sys.modules[name] = type(sys)(name)
    exec(code, sys.modules[name].__dict__)

class Loaded(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]

libraries = []
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Loaded), ctypes.c_size_t, ctypes.c_void_p)
def see(loaded, size, data):
    libraries.append(loaded.contents.name.decode())
    return 0
ctypes.CDLL(None).dl_iterate_phdr(see, None)
modules = {
    module.__spec__.name: module.__file__
    for module in list(sys.modules.values())
    if getattr(module, "__spec__", None) and getattr(module, "__file__", None)
}
import json
print(json.dumps({"modules": modules, "libraries": libraries}))
"""
"""Imports the guest and prints where its modules and shared libraries were loaded from."""

_LOADER = re.compile(r"ld(64|-|\.so)")
"""Names of dynamic loaders: ld-linux-x86-64.so.2, ld-musl-aarch64.so.1, ld64.so.2, ld-2.31.so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInterpreter:
    """The Python that sandboxes run, where it lies on this machine."""

    executable: str
    """Real path of the binary."""
    roots: tuple[str, ...]
    """Directories it needs: its prefix, and where its binary lies if that is elsewhere."""

    @property
    def command(self) -> list[str]:
        """The command line of a supervisor."""
        return [self.executable, *FLAGS, "-c", BOOT]

    def reachable(self) -> bool:
        """Whether any user of this machine may run it."""
        places = [Path(self.executable), *map(Path, self.roots)]
        parents = {parent for place in places for parent in (place, *place.parents)}
        return all(path.stat().st_mode & stat.S_IXOTH for path in parents)

    def cover(self) -> str | None:
        """The outermost directory that ordinary users cannot enter on the way to it."""
        for parent in reversed(Path(self.executable).parents):
            if not parent.stat().st_mode & stat.S_IXOTH:
                return str(parent)
        return None


@cache
def host_interpreter() -> HostInterpreter:
    """The base interpreter of this process; never its virtual environment."""
    executable = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
    prefix = Path(sys.base_prefix).resolve()
    roots = [str(prefix)]
    if not executable.is_relative_to(prefix):
        roots.append(str(executable.parent))
    return HostInterpreter(executable=str(executable), roots=tuple(roots))


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedInterpreter:
    """The interpreter as an archive that runs below any directory of any Linux of this machine's
    architecture."""

    archive: bytes
    """An uncompressed tar; the same bytes each time it is made from the same interpreter."""
    digest: str
    """Hash of the archive."""
    machine: str
    """Architecture it runs on, as `uname -m` calls it."""

    @staticmethod
    def command(root: str) -> list[str]:
        """The command line of a supervisor, with the archive unpacked in `root`."""
        loader = [f"{root}/{START}", "--library-path", f"{root}/lib"]
        return [*loader, f"{root}/bin/python3", *PACKED_FLAGS, "-c", BOOT]


@cache
def packed_interpreter() -> PackedInterpreter:
    """The base interpreter of this process as an archive; takes some 0.2 s, once.

    Raises:
        SandboxUnavailable: it cannot be carried elsewhere; says why.
    """
    executable = host_interpreter().executable
    modules, paths = _survey(executable)
    libraries = {Path(path).name: Path(path).read_bytes() for path in paths}
    loaders = [name for name in libraries if _LOADER.match(name)]
    if len(loaders) != 1:
        raise SandboxUnavailable(
            f"the Python of this process, {executable}, cannot run in a container: expected one "
            f"dynamic loader among its libraries, got {loaders}; use a Python that is linked "
            "dynamically"
        )
    standard = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
    files = {"bin/python3": Path(executable).read_bytes()}
    files |= {f"lib/{name}": content for name, content in libraries.items()}
    for name, path in modules.items():
        target, content = _packed_module(name, Path(path))
        files[f"{standard}/{target}"] = content
    # Python looks for it and complains where it is missing.
    folders = {f"{standard}/lib-dynload"}
    archive = _archive(files, folders, {START: f"lib/{loaders[0]}"})
    digest = hashlib.sha256(archive).hexdigest()
    return PackedInterpreter(archive=archive, digest=digest, machine=os.uname().machine)


def _survey(executable: str) -> tuple[dict[str, str], list[str]]:
    """Files of the modules that the guest imports, by name, and paths of the shared libraries.

    Raises:
        SandboxUnavailable: the interpreter does not say.
    """
    try:
        done = subprocess.run(
            [executable, *PACKED_FLAGS, "-c", SURVEY],
            input=marshal.dumps(guest_modules()),
            capture_output=True,
            env={},
            timeout=SURVEY_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or b""
        raise SandboxUnavailable(
            f"cannot find out which files {executable} needs: {error} "
            f"{said.decode('utf-8', 'replace').strip()}"
        ) from error
    found = json.loads(done.stdout)
    extensions = set(found["modules"].values())
    libraries = [path for path in found["libraries"] if "/" in path and path not in extensions]
    return found["modules"], libraries


def _packed_module(name: str, path: Path) -> tuple[str, bytes]:
    """Where a module goes below the standard library, and its content: compiled, or as it is."""
    place = name.replace(".", "/")
    if path.stem == "__init__":
        place += "/__init__"
    if path.suffix == ".py":
        code = compile(path.read_bytes(), f"<{name}>", "exec", dont_inherit=True, optimize=2)
        # A cached module without its source: no flags, no time of change, no size.
        return f"{place}.pyc", MAGIC_NUMBER + bytes(12) + marshal.dumps(code)
    if path.suffix == ".pyc":
        return f"{place}.pyc", path.read_bytes()
    return f"lib-dynload/{path.name}", path.read_bytes()


def _archive(files: dict[str, bytes], folders: set[str], links: dict[str, str]) -> bytes:
    """A tar of all these, folders first and links last, that says nothing of its making."""
    folders |= {str(parent) for place in {*files, *folders} for parent in Path(place).parents}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for place in sorted(folders - {"."}):
            member = tarfile.TarInfo(place)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member)
        for place, content in sorted(files.items()):
            member = tarfile.TarInfo(place)
            member.size, member.mode = len(content), 0o555
            archive.addfile(member, io.BytesIO(content))
        for place, target in links.items():
            member = tarfile.TarInfo(place)
            member.type, member.linkname, member.mode = tarfile.SYMTYPE, target, 0o777
            archive.addfile(member)
    return buffer.getvalue()
