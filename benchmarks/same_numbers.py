"""Record the results of seeded tiny runs and compare them later: proof of unchanged numbers.

    .venv/bin/python benchmarks/same_numbers.py record          # on the code before
    .venv/bin/python benchmarks/same_numbers.py compare         # on the code after

Cases (see `number_cases.py`): each driver in virtual time, each train backend on two ranks, each
algorithm preset and some options through `agentrl train`. Of every case the file has three sha256:
of the final weights, of the metrics of all steps (without what a clock made), and of the stored
rollouts; and some rounded numbers. On a machine like the one that recorded (same processor flags
and library versions) digests must be equal bit for bit; elsewhere the numbers must agree within the
tolerance in the file. `record` makes every case twice and marks one whose bits do not repeat.
`compare` makes a case up to three times before it says that it differs: in `agentrl train` the
event loop, the engine and the trainer are threads, and on a busy machine a request may miss the
batch it was in before, which moves the last bit of a log-probability. Equal bits are no accident.

Exit status 1 if a case differs. `--only WORD` makes some cases only.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

sys.path.append(str(Path(__file__).parent))

from number_cases import Case, Made, all_cases, two_ranks

FILE = Path(__file__).parent / "results" / "same_numbers.json"
ATTEMPTS = 3
CLOCK = re.compile(r"^time$|^timing_s/|^perf/|_s$|_s/|seconds|per_second|^memory/|idle_share")
"""Names of metrics that a clock or the machine makes."""
TOLERANCE = {"relative": 2e-3, "absolute": 1e-5}
SHOWN = (
    "reward", "score", "train/loss", "train/grad_norm", "train/updates", "train/ratio_max", "kl",
    "entropy", "clip_ratio/region_mean", "batch/tokens", "batch/rows_trained", "critic/vf_loss",
    "batch/advantage_abs_mean", "staleness/lag_mean", "rollout/dropped", "rollout/put_off",
)  # fmt: skip
"""Metrics of the last step that are kept as numbers, where a case has them."""
LIBRARIES = ("torch", "transformers", "numpy", "deepspeed")


def machine() -> dict[str, str]:
    """Processor and library versions, on which the last bit of a float may depend."""
    import torch

    flags = ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", info.read_text(), re.MULTILINE)
        flags = " ".join(sorted(found[1].split())) if found else ""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "none"
    return {
        "architecture": platform.machine(),
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "flags": hashlib.sha256(flags.encode()).hexdigest()[:16],
        **versions,
    }


def weights_digest(weights: Mapping[str, Any]) -> str:
    import torch

    state = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().contiguous()
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def kept_metrics(made: Made, names: set[str] | None) -> list[dict[str, float]]:
    """The metrics by step that no clock makes, of those names."""
    lines = [
        {
            name: value
            for name, value in line.items()
            if not CLOCK.search(name) and (names is None or name in names)
        }
        for line in made.metrics
    ]
    # The line that has what a checkpoint took has nothing else, and no fixed place.
    return [line for line in lines if line.keys() - {"step"}]


def numbers_of(made: Made) -> dict[str, float]:
    """A handful of numbers another machine can be held to."""
    last: dict[str, float] = {}
    for line in made.metrics:
        last.update({name: line[name] for name in SHOWN if name in line})
    both = [
        (made.before[name].double(), tensor.double())
        for name, tensor in made.weights.items()
        if name in made.before
    ]
    last["weights/sum"] = sum(after.sum().item() for _, after in both)
    last["weights/norm"] = math.sqrt(sum(after.pow(2).sum().item() for _, after in both))
    last["weights/moved"] = math.sqrt(sum((b - a).pow(2).sum().item() for a, b in both))
    return {name: float(f"{value:.6g}") for name, value in sorted(last.items())}


def made_in(case: Case, parent: Path, attempt: int = 0) -> Made:
    folder = parent / re.sub(r"\W+", "-", case.name) / str(attempt)
    folder.mkdir(parents=True)
    return case.run(folder)


def entry_of(made: Made, names: set[str] | None = None) -> dict[str, Any]:
    """The digests and numbers of a case, as the file holds them."""
    return {
        "weights": weights_digest(made.weights),
        "metrics": digest(kept_metrics(made, names)),
        "rollouts": digest(made.rollouts),
        "numbers": numbers_of(made),
    }


def metric_names(made: Made) -> set[str]:
    return {name for line in kept_metrics(made, None) for name in line}


def wrong_numbers(
    recorded: Mapping[str, float], now: Mapping[str, float], tolerance: Mapping[str, float]
) -> list[str]:
    """One line for every number that is gone or lies outside the tolerance."""
    return [
        f"{name} {was:g} -> {now.get(name, math.nan):g}"
        for name, was in recorded.items()
        if name not in now
        or not math.isclose(
            was, now[name], rel_tol=tolerance["relative"], abs_tol=tolerance["absolute"]
        )
    ]


def check(entry: Mapping[str, Any], now: Mapping[str, Any], file: Mapping[str, Any]) -> list[str]:
    """The differences of a case from its entry; empty if there is none."""
    bits = [] if "inexact" in entry else ["weights", "metrics", "rollouts"]
    wrong = []
    if file["machine"] == machine():
        wrong = [f"{part} differ" for part in bits if entry[part] != now[part]]
    return wrong + wrong_numbers(entry["numbers"], now["numbers"], file["tolerance"])


def chosen_cases(only: str) -> Iterator[Case]:
    for name, case in all_cases().items():
        if only in name:
            yield case


def record(path: Path, only: str, console: Console) -> int:
    """Make every case twice and write the file."""
    entries: dict[str, Any] = {}
    names: set[str] = set()
    with tempfile.TemporaryDirectory() as temporary:
        for case in chosen_cases(only):
            began = time.perf_counter()
            first, second = (made_in(case, Path(temporary), attempt) for attempt in (1, 2))
            entry, again = entry_of(first), entry_of(second)
            differ = [
                part for part in ("weights", "metrics", "rollouts") if entry[part] != again[part]
            ]
            if differ:
                changed = sorted(
                    name
                    for ours, theirs in zip(
                        kept_metrics(first, None), kept_metrics(second, None), strict=True
                    )
                    for name in ours.keys() | theirs.keys()
                    if ours.get(name) != theirs.get(name)
                )
                entry["inexact"] = f"two runs differ in {', '.join(differ)}: " + ", ".join(
                    sorted(set(changed))
                )
            entries[case.name] = entry
            names |= metric_names(first)
            took_s = time.perf_counter() - began
            console.print(f"{case.name:55} {took_s:5.1f} s  {entry.get('inexact', 'repeats')}")
    file = {
        "machine": machine(),
        "tolerance": TOLERANCE,
        "metric_names": sorted(names),
        "cases": entries,
    }
    path.write_text(json.dumps(file, indent=1) + "\n")
    return 1 if any("inexact" in entry for entry in entries.values()) else 0


def compare(path: Path, only: str, console: Console) -> int:
    """Make every case once and hold it to the file."""
    file = json.loads(path.read_text())
    same_machine = file["machine"] == machine()
    console.print(
        "as the machine that recorded: digests must be equal"
        if same_machine
        else f"not the machine that recorded ({file['machine']} there, {machine()} here): numbers "
        f"must agree within {file['tolerance']}"
    )
    table = Table("case", "s", "result")
    names, new, bad = set(file["metric_names"]), set[str](), 0
    expected = {name for name in file["cases"] if only in name}
    with tempfile.TemporaryDirectory() as temporary:
        for case in chosen_cases(only):
            began = time.perf_counter()
            expected.discard(case.name)
            attempt = 0
            if case.name not in file["cases"]:
                wrong = ["not in the file"]
            else:
                for attempt in range(1, ATTEMPTS + 1):
                    try:
                        made = made_in(case, Path(temporary), attempt)
                    except Exception as error:
                        wrong = [f"fails: {error!r}"[-400:]]
                        break
                    new |= metric_names(made) - names
                    wrong = check(file["cases"][case.name], entry_of(made, names), file)
                    if not wrong:
                        break
            bad += bool(wrong)
            equal = "equal" if same_machine else "within tolerance"
            equal += f" at attempt {attempt}" if attempt > 1 else ""
            result = "[red]DIFFERS[/red]: " + escape("; ".join(wrong)) if wrong else equal
            table.add_row(case.name, f"{time.perf_counter() - began:.1f}", result)
    for name in sorted(expected):
        bad += 1
        table.add_row(name, "", "[red]DIFFERS[/red]: no such case any more")
    console.print(table)
    if new:
        console.print(f"metrics that are new since, and not compared: {', '.join(sorted(new))}")
    console.print(f"{bad} of {table.row_count} differ")
    return 1 if bad else 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Proof that a change changes no number.")
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("file", type=Path, nargs="?", default=FILE)
    parser.add_argument("--only", default="", help="cases whose name has this word")
    args = parser.parse_args()
    # One thread: how many there are decides how sums are cut.
    os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    import torch
    from transformers.utils.logging import disable_progress_bar

    torch.set_num_threads(1)
    disable_progress_bar()
    work = record if args.what == "record" else compare
    try:
        sys.exit(work(args.file, args.only, Console(width=140)))
    finally:
        two_ranks.close()


if __name__ == "__main__":
    main()
