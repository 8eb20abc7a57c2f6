"""Compare preflight's estimate of memory with the measured peak of a real run in this process.

    python benchmarks/memory.py configs/quickstart.yaml train.steps=1 dataset.limit=8

Trains as the config says (evaluation left out), and prints what was expected, the peak of resident
memory as the kernel counted it, and the error of the estimate. Settings after the file win.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
from pathlib import Path

from agentrl.config import load_config
from agentrl.config.plan import plan_run
from agentrl.disk.model_source import policy_config
from agentrl.preflight.memory.estimate import GIB, Room, estimate
from agentrl.runtime.launch import train
from agentrl.runtime.progress import Progress


def main(file: str, *overrides: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        usual = (f"run.dir={folder}", "eval.datasets={}", "train.steps=1")
        config = load_config(Path(file), (*usual, *overrides))
        plan, shape = plan_run(config, Path(file).parent), model_shape(config.model)
        processes = estimate(plan.trainer, plan.engines.serving, shape, on_gpu=False)
        for process in processes:
            print("expected:", process.text())
        started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        asyncio.run(train(config, base=Path(file).resolve().parent, progress=Progress()))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    expected = processes[0].size
    print(f"measured: {peak / GIB:.2f} GiB at the peak, {started / GIB:.2f} before the model")
    print(f"error of the estimate: {expected / peak - 1:+.0%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
