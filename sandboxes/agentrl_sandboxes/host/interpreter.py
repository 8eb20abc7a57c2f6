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
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import MAGIC_NUMBER
from pathlib import Path

from agentrl.errors import SandboxUnavailable
from agentrl_sandboxes.host.channel import BOOT, guest_modules

FLAGS = ("-I", "-S")
"""Isolated from environment, site packages and the current directory."""
PACKED_FLAGS = (*FLAGS, "-X", "utf8")
"""Text is UTF-8, whatever the locale."""
PACKED_ENVIRONMENT = {"LC_ALL": "C"}
"""All its variables; another locale would be loaded from the files of the image."""
LIBRARY = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
"""Where a packed interpreter finds its standard library."""
START = "start"
"""The last member of the archive, a link to the loader: once it is there, all others are."""
SURVEY_S = 30.0
"""How long the interpreter may take to report what it has loaded; 0.05 s on an idle machine."""

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
        """True if any user of this machine may run it."""
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
    """The interpreter as files that run in any directory of any Linux of this architecture."""

    files: Mapping[str, Path]
    """Where each file goes, and where it lies here. What is a `.py` here goes compiled."""
    loader: str
    """Path of the dynamic loader."""
    digest: str
    """Hash of the names and contents of the files."""
    machine: str
    """Architecture it runs on, as `uname -m` calls it."""

    @staticmethod
    def command(root: str) -> list[str]:
        """The command line of a supervisor, with the archive unpacked in `root`."""
        loader = [f"{root}/{START}", "--library-path", f"{root}/lib"]
        return [*loader, f"{root}/bin/python3", *PACKED_FLAGS, "-c", BOOT]

    def archive(self) -> bytes:
        """An uncompressed tar of the files, some 30 MB; directories come first, `START` last."""
        # Python looks for the last one and complains where it is missing.
        folders = {parent for place in self.files for parent in Path(place).parents}
        folders |= {Path(LIBRARY, "lib-dynload")}
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for folder in sorted(folders - {Path()}):
                member = tarfile.TarInfo(str(folder))
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(member)
            for place, path in self.files.items():
                content = _content(path)
                member = tarfile.TarInfo(place)
                member.size, member.mode = len(content), 0o555
                archive.addfile(member, io.BytesIO(content))
            member = tarfile.TarInfo(START)
            member.type, member.linkname, member.mode = tarfile.SYMTYPE, self.loader, 0o777
            archive.addfile(member)
        return buffer.getvalue()


@cache
def packed_interpreter() -> PackedInterpreter:
    """The base interpreter of this process, ready to be packed; takes some 0.1 s, once.

    Raises:
        SandboxUnavailable: it cannot be carried elsewhere; says why.
    """
    executable = host_interpreter().executable
    modules, libraries = _survey(executable)
    loaders = [path for path in libraries if _LOADER.match(Path(path).name)]
    if len(loaders) != 1:
        raise SandboxUnavailable(
            f"the Python of this process, {executable}, cannot run in a container: expected one "
            f"dynamic loader among its libraries, got {loaders}; use a Python that is linked "
            "dynamically"
        )
    files = {"bin/python3": Path(executable)}
    files |= {f"lib/{Path(path).name}": Path(path) for path in libraries}
    files |= {
        f"{LIBRARY}/{_packed(name, Path(path))}": Path(path) for name, path in modules.items()
    }
    found = hashlib.sha256()
    for place, path in sorted(files.items()):
        found.update(f"{place} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return PackedInterpreter(
        files=files,
        loader=f"lib/{Path(loaders[0]).name}",
        digest=found.hexdigest(),
        machine=os.uname().machine,
    )


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
            env=PACKED_ENVIRONMENT,
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


def _packed(name: str, path: Path) -> str:
    """The path of a module's file below the standard library."""
    if path.suffix not in (".py", ".pyc"):
        return f"lib-dynload/{path.name}"
    package = "/__init__" if path.stem == "__init__" else ""
    return f"{name.replace('.', '/')}{package}.pyc"


def _content(path: Path) -> bytes:
    """Content of a file; of a module its code, which needs no cache and no source beside it."""
    content = path.read_bytes()
    if path.suffix != ".py":
        return content
    code = compile(content, f"<{path.stem}>", "exec", dont_inherit=True, optimize=2)
    # After the magic number: no flags, no time of change, no size.
    return MAGIC_NUMBER + bytes(12) + marshal.dumps(code)
