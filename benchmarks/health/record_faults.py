"""Train the small runs of benchmarks/health/faults and keep what detectors look at.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/health/record_faults.py [NAME ...]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from faults.scenarios import SCENARIOS
from faults.streams import RECORDED, save
from harness import options

from agentrl.health import diagnose, read_history


def main() -> None:
    known = {scenario.name: scenario for scenario in SCENARIOS}
    args = options(__doc__, names_=[str], folder=Path)
    folder = args.folder or Path(tempfile.mkdtemp())
    for name in args.names or known:
        begun = time.monotonic()
        run, status, text = known[name].train(folder)
        if status not in (0, 3):
            print(f"{name}: exit {status}\n{text[-2000:]}", flush=True)
            continue
        history = read_history(run)
        save(RECORDED / f"{name}.json.gz", history)
        found = [v.name for v in diagnose(history) if v.status in ("warn", "fail")]
        seconds = time.monotonic() - begun
        print(f"{name}: {seconds:.0f} s, found {', '.join(found) or 'nothing'}", flush=True)


if __name__ == "__main__":
    main()
