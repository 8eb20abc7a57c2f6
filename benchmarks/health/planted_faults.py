"""Each failure mode of the guide (7.2.1 to 7.2.5), provoked in a real small run, named and stopped.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/health/planted_faults.py [MODE ...]

A run passes when its rule ends it (exit status 3, the rule in result.json) before its last step,
and `agentrl doctor` names the fault from what is on disk then.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from faults.scenarios import SCENARIOS

STEPS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One failure mode."""

    part: str
    """Of the guide."""
    scenario: str
    """What is planted, from benchmarks/health/faults/scenarios.py."""
    names: frozenset[str]
    """What a doctor may call it."""
    rule: str
    """What has to end the run."""


MODES = {
    "entropy collapse": Mode(
        part="7.2.1",
        scenario="collapse",
        names=frozenset({"entropy_collapse", "pattern_collapse"}),
        rule="entropy < 0.05 for 10 steps -> stop",
    ),
    "length hacking": Mode(
        part="7.2.2",
        scenario="length",
        names=frozenset({"length_hacking"}),
        rule="completions/clipped_ratio > 0.7 for 10 steps -> stop",
    ),
    "gibberish": Mode(
        part="7.2.2",
        scenario="junk",
        names=frozenset({"gibberish"}),
        rule="kl > 2 for 5 steps -> stop",
    ),
    "judge hacking": Mode(
        part="7.2.2",
        scenario="judged",
        names=frozenset({"judge_hacking"}),
        rule="rewards/judge/mean > 0.7 for 5 steps -> stop",
    ),
    "value divergence": Mode(
        part="7.2.3",
        scenario="critic_scale",
        names=frozenset({"value_divergence"}),
        rule="critic/vf_loss > 1 for 5 steps -> stop",
    ),
    "sampler-learner gap": Mode(
        part="7.2.4",
        scenario="stale",
        names=frozenset({"sampler_learner_gap"}),
        rule="sampling/sampling_logp_difference/mean > 0.3 for 4 steps -> stop",
    ),
    "empty gradient": Mode(
        part="7.2.5",
        scenario="all_equal",
        names=frozenset({"empty_gradient"}),
        rule="frac_reward_zero_std > 0.95 for 8 steps -> stop",
    ),
}


def provoke(name: str, folder: Path) -> tuple[bool, str]:
    """Run one mode: whether it was stopped and named, and the line of the table."""
    mode = MODES[name]
    scenario = next(s for s in SCENARIOS if s.name == mode.scenario)
    begun = time.monotonic()
    run, status, text = scenario.train(folder, train__steps=STEPS, health__rules=[mode.rule])
    result = json.loads((run / "result.json").read_text()) if (run / "result.json").exists() else {}
    stopped = status == 3 and "rule" in result and result["steps"] < STEPS
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from agentrl.cli import main; main()",
            "doctor",
            str(run),
            "--json",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    verdicts = json.loads(done.stdout)["verdicts"]
    spoke = [v["detector"] for v in verdicts if v["status"] in ("warn", "fail")]
    named = done.returncode == 1 and bool(mode.names & set(spoke))
    if not stopped:
        print(f"{name}: exit {status}, {result.get('reason')}\n{text[-1500:]}", file=sys.stderr)
    seconds = time.monotonic() - begun
    first = [s for s in spoke if s in mode.names] + [s for s in spoke if s not in mode.names]
    line = (
        f"| {mode.part} {name} | {'step ' + str(result.get('steps')) if stopped else 'NOT STOPPED'}"
        f" | `{mode.rule}` | {', '.join(first) if named else 'NOT NAMED'} | {seconds:.0f} |"
    )
    return stopped and named, line


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("modes", nargs="*", help=f"default all: {', '.join(MODES)}")
    arguments.add_argument("--folder", type=Path, help="keep the runs here")
    options = arguments.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    print("| failure | stopped at | by the rule | doctor names | seconds |\n|---|---|---|---|---|")
    passed = []
    for name in options.modes or MODES:
        good, line = provoke(name, folder)
        passed.append(good)
        print(line, flush=True)
    raise SystemExit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
