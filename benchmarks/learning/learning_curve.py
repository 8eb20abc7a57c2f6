"""Reward and held-out score of a finished run as a table and a plot.

    .venv/bin/agentrl train configs/quickstart.yaml run.name=long train.steps=60 \
        train.max_minutes=15 eval.every_steps=15
    .venv/bin/python benchmarks/learning/learning_curve.py runs/long \
        benchmarks/results/quickstart_long
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import matplotlib
from harness import options

matplotlib.use("svg")
import matplotlib.pyplot as plt


def read(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def smooth(values: list[float], width: int = 5) -> list[float]:
    """Mean over the last `width` steps."""
    windows = (values[max(0, i - width + 1) : i + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def table(rows: list[dict], names: list[str]) -> str:
    heads = ["step", "minutes", "reward (5-step mean)", *(f"{n} [95 %]" for n in names)]
    lines = [" | ".join(heads), " | ".join("---" for _ in heads)]
    trained = [row for row in rows if "reward" in row]
    means = smooth([row["reward"] for row in trained])
    reward = {row["step"]: mean for row, mean in zip(trained, means, strict=True)}
    for row in rows:
        if f"eval/{names[0]}/score" not in row:
            continue
        cells = [str(row["step"]), f"{row.get('timing_s/elapsed', 0) / 60:.1f}"]
        cells.append(f"{reward[row['step']]:.2f}" if row["step"] in reward else "")
        for name in names:
            score, low, high = (row[f"eval/{name}/score{end}"] for end in ("", "_low", "_high"))
            cells.append(f"{score:.2f} [{low:.2f}, {high:.2f}]")
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def plot(rows: list[dict], names: list[str], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4))
    trained = [row for row in rows if "reward" in row]
    steps = [row["step"] for row in trained]
    axes.plot(steps, [r["reward"] for r in trained], ".", color="0.7", label="reward of a step")
    axes.plot(steps, smooth([r["reward"] for r in trained]), color="0.4", label="5-step mean")
    for name in names:
        scored = [row for row in rows if f"eval/{name}/score" in row]
        score = [row[f"eval/{name}/score"] for row in scored]
        low = [row[f"eval/{name}/score"] - row[f"eval/{name}/score_low"] for row in scored]
        high = [row[f"eval/{name}/score_high"] - row[f"eval/{name}/score"] for row in scored]
        at = [row["step"] for row in scored]
        axes.errorbar(at, score, yerr=[low, high], marker="o", capsize=3, label=f"{name}, 95 %")
    axes.set(xlabel="optimizer step", ylabel="share solved", ylim=(0, 1))
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    args = options(__doc__, run_=Path, out_=Path)
    rows = read(args.run)
    names = sorted({k.split("/")[1] for row in rows for k in row if k.startswith("eval/")})
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".md").write_text(table(rows, names))
    plot(rows, names, args.out.with_suffix(".svg"))
    print(table(rows, names))


if __name__ == "__main__":
    main()
