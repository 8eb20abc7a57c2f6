"""Parts that benchmarks share: options, work side by side, medians with spread, tables."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Choice:
    """An option with the values that it may have; no default makes it None."""

    def __init__(self, values: Iterable[Any], default: Any = None) -> None:
        self.values, self.default = tuple(values), default


def options(about: str | None, /, **known: Any) -> argparse.Namespace:
    """Options of the command line, which the docstring of a script explains.

    Args:
        about: shown by `--help`.
        known: defaults by name. False is a switch, a list takes one value or more, a type, a list
            of one or a `Choice` stands for what may be left out. A name that ends in `_` is no
            option but a word in its place.

    Example:
        >>> sys.argv[1:] = ["--repeats", "2"]
        >>> options("...", repeats=5, quick=False, keep=Path)
        Namespace(repeats=2, quick=False, keep=None)
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in known.items():
        word = name.endswith("_")
        flag = name.rstrip("_") if word else f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, Choice):
            more = {} if word else {"default": default.default}
            parser.add_argument(flag, choices=default.values, **more)
        elif isinstance(default, list):
            (first, *_) = default
            kind, given = (first, []) if isinstance(first, type) else (type(first), default)
            parser.add_argument(flag, nargs="*" if word else "+", type=kind, default=given)
        elif isinstance(default, type):
            parser.add_argument(flag, type=default)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    return parser.parse_intermixed_args()


def in_turns(
    work: Mapping[str, Callable[[], T]],
    repeats: int,
    *,
    clock: Callable[[], float] = time.process_time,
    check: Callable[[dict[str, T]], None] = lambda results: None,
    warm: int = 1,
) -> dict[str, list[float]]:
    """Seconds of each piece of work, side by side: one of each in a round, then the next round.

    Args:
        work: by name.
        repeats: rounds that count.
        clock: processor time of this process, or `time.perf_counter`.
        check: looks at the results of a round.
        warm: rounds before those, which do not count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for number in range(warm + repeats):
        results: dict[str, T] = {}
        for name, run in work.items():
            began = clock()
            results[name] = run()
            if number >= warm:
                seconds[name].append(clock() - began)
        check(results)
    return seconds


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median with the least and the largest.

    Example:
        >>> spread([1.0, 3.0, 2.0])
        '2.00 [1.00-3.00]'
    """
    middle = statistics.median(values)
    return f"{middle:.{digits}f} [{min(values):.{digits}f}-{max(values):.{digits}f}]"


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table whose cells stand at the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*map(str, row))
    Console(width=120).print(table)


@contextmanager
def answering(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[str]:
    """A server at a free port that answers every POST of JSON with JSON; gives its `/v1`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            reply = json.dumps(answer(asked)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *args: object) -> None:
            """Keep silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def machine() -> str:
    """The machine in words: processor, cores, load, Python."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (
        f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}, Python {platform.python_version()}"
    )


def measured_with(*more: str) -> str:
    """The machine, the commit (`-dirty` where files differ from it) and the libraries."""
    import torch
    import transformers

    words = ("git", "describe", "--always", "--dirty")
    found = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True)
    libraries = (f"torch {torch.__version__}", f"transformers {transformers.__version__}", *more)
    return f"{machine()}; commit {found.stdout.strip() or 'unknown'}; {', '.join(libraries)}"


def process_bytes(field: str) -> int:
    """Resident memory of this process: `VmRSS` now, `VmHWM` at its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"no {field} in /proc/self/status")


def in_own_process(*more: str) -> Any:
    """The JSON that this very command prints last with more words, in a process of its own."""
    command = [sys.executable, *sys.argv, *more]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.splitlines()[-1])
