"""`serving.args` through the installed vLLM's own parser, in a process of its own.

Importing vLLM takes seconds and leaves much behind, so it is asked in a child, and only where there
are options that agentrl does not read itself.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from agentrl.config.fleet import WIDTHS
from agentrl.errors import ConfigError
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
    if find_spec("vllm") is None:
        return "; serving.args were not checked: vLLM is not installed here"
    words = json.dumps(user_words(asked))
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
    return f"; vLLM {found['version']} takes all serving.args"


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
