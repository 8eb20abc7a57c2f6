"""Memory of a simulated run after each of its steps; a program, so that it has a process alone.

    python -m tests.cli.simulate.fleet.step_memory FOLDER      # FOLDER of a tokenizer

Prints one line of JSON: `tokens` of a step, and `held_bytes` after each step.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import sys

from agentrl.cli.simulate.fleet.case import GROUP, ScaleCase
from agentrl.cli.simulate.fleet.meter import resident_bytes
from agentrl.cli.simulate.fleet.simulation import simulate_scale

STEPS = 18


def held_bytes() -> int:
    """Memory of this process without what is garbage or was given back to malloc."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return resident_bytes()


def main(tokenizer: str) -> None:
    """Run it and print the line."""
    case = ScaleCase(
        servers=2,
        conversations=2 * GROUP,
        turns=4,
        turn_s=0.01,
        result_chars=2000,
        steps=STEPS,
        tokenizer=tokenizer,
    )
    report = asyncio.run(simulate_scale(case, memory=held_bytes))
    found = {"tokens": report.tokens // STEPS, "held_bytes": list(report.resident_bytes)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
