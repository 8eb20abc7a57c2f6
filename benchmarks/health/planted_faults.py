"""Each failure mode of the guide (7.2.1 to 7.2.5), provoked in a real small run, named and stopped.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/health/planted_faults.py [MODE ...]

A run passes when its rule ends it (exit status 3, the rule in result.json) before its last step,
and `agentrl doctor` names the fault from what is on disk then.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from faults.scenarios import SCENARIOS
from harness import options

STEPS = 80


@dataclass(frozen=True, slots=True)
class Mode:
    """One failure mode."""

    part: str
    """Of the guide."""
    scenario: str
    """What is planted, from benchmarks/health/faults/scenarios.py."""
    names: str
    """What a doctor may call it."""
    rule: str
    """What has to end the run."""


MODES = {
    "entropy collapse": Mode("7.2.1", "collapse", "entropy_collapse pattern_collapse",
                             "entropy < 0.05 for 10 steps -> stop"),
    "length hacking": Mode("7.2.2", "length", "length_hacking",
                           "completions/clipped_ratio > 0.7 for 10 steps -> stop"),
    "gibberish": Mode("7.2.2", "junk", "gibberish", "kl > 2 for 5 steps -> stop"),
    "judge hacking": Mode("7.2.2", "judged", "judge_hacking",
                          "rewards/judge/mean > 0.7 for 5 steps -> stop"),
    "value divergence": Mode("7.2.3", "critic_scale", "value_divergence",
                             "critic/vf_loss > 1 for 5 steps -> stop"),
    "sampler-learner gap": Mode("7.2.4", "stale", "sampler_learner_gap",
                                "sampling/sampling_logp_difference/mean > 0.3 for 4 steps -> stop"),
    "empty gradient": Mode("7.2.5", "all_equal", "empty_gradient",
                           "frac_reward_zero_std > 0.95 for 8 steps -> stop"),
}  # fmt: skip


def provoke(name: str, folder: Path) -> tuple[bool, str]:
    """Run one mode: whether it was stopped and named, and the line of the table."""
    mode = MODES[name]
    scenario = next(s for s in SCENARIOS if s.name == mode.scenario)
    begun = time.monotonic()
    run, status, text = scenario.train(folder, train__steps=STEPS, health__rules=[mode.rule])
    result = json.loads((run / "result.json").read_text()) if (run / "result.json").exists() else {}
    stopped = status == 3 and "rule" in result and result["steps"] < STEPS
    words = [sys.executable, "-c", "from agentrl.cli import main; main()", "doctor", str(run)]
    done = subprocess.run([*words, "--json"], capture_output=True, text=True)
    verdicts = json.loads(done.stdout)["verdicts"]
    spoke = [v["detector"] for v in verdicts if v["status"] in ("warn", "fail")]
    named = done.returncode == 1 and bool(set(mode.names.split()) & set(spoke))
    if not stopped:
        print(f"{name}: exit {status}, {result.get('reason')}\n{text[-1500:]}", file=sys.stderr)
    seconds = time.monotonic() - begun
    first = sorted(spoke, key=lambda name: name not in mode.names.split())
    line = (
        f"| {mode.part} {name} | {'step ' + str(result.get('steps')) if stopped else 'NOT STOPPED'}"
        f" | `{mode.rule}` | {', '.join(first) if named else 'NOT NAMED'} | {seconds:.0f} |"
    )
    return stopped and named, line


def main() -> None:
    args = options(__doc__, modes_=[str], folder=Path)
    folder = args.folder or Path(tempfile.mkdtemp())
    print("| failure | stopped at | by the rule | doctor names | seconds |\n|---|---|---|---|---|")
    passed = []
    for name in args.modes or MODES:
        good, line = provoke(name, folder)
        passed.append(good)
        print(line, flush=True)
    raise SystemExit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
