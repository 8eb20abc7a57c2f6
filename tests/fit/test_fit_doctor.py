"""`agentrl doctor` on the run directories of real small fits, sound and spoiled."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from agentrl.config.fit import FitConfig
from agentrl.config.keys import leaves
from tests.fit.fit_project import pairs, write_fit, write_rows
from tests.runtime.tiny_project import agentrl

FIT = {"data__examples_per_step": 8, "data__epochs": 30, "train__steps": 30, "eval__shown": 0}


def judged(folder: Path, train: list[dict[str, Any]], held: list[dict[str, Any]], **changes: Any):
    """Exit status of doctor, and what warns or fails by the name of its detector."""
    path = write_fit(folder, "dpo", **{**FIT, **changes})
    write_rows(folder / "train.jsonl", train)
    write_rows(folder / "held.jsonl", held)
    status, text = agentrl(folder / "fit.log", "fit", path)
    assert status == 0, text
    run = folder / "runs" / "fit"
    status, text = agentrl(folder / "doctor.log", "doctor", run, "--json")
    report = json.loads(text[text.index("{") :])
    spoke = {v["detector"]: v for v in report["verdicts"] if v["status"] in ("warn", "fail")}
    assert status == bool(spoke), text
    judged_by = {v["detector"] for v in report["verdicts"] if v["status"] != "unknown"}
    assert {"margin_alone", "likelihood_falls"} <= judged_by
    keys = {key.name for key in leaves(FitConfig)}
    assert {lever["key"] for v in spoke.values() for lever in v["levers"]} <= keys
    return spoke


def renamed(rows: list[dict[str, Any]], start: str) -> list[dict[str, Any]]:
    return [
        {**row, "id": f"{start}{row['id']}", "prompt": f"{start} {row['prompt']}"} for row in rows
    ]


def test_nothing_is_said_of_a_fit_that_learns(tmp_path: Path) -> None:
    spoke = judged(tmp_path, renamed(pairs(32), "t"), renamed(pairs(24), "h"))
    assert spoke == {}


def test_a_rate_that_unlearns_both_answers_is_named(tmp_path: Path) -> None:
    """Answers that differ in one letter: what they share pays for what tells them apart."""
    rng = random.Random(1)
    rows = pairs(32)
    for row in rows:
        text, place = "".join(rng.choices("abcdefgh", k=8)), rng.randrange(8)
        row["chosen"] = text
        row["rejected"] = text[:place] + rng.choice("ijkl") + text[place + 1 :]
    spoke = judged(
        tmp_path, renamed(rows, "t"), renamed(pairs(24), "h"), train__learning_rate=0.02,
        objective={"kind": "dpo", "beta": 0.05},
    )  # fmt: skip
    assert "likelihood_falls" in spoke
    assert spoke["likelihood_falls"]["levers"][0]["key"] == "objective.nll_coef"


def test_labels_by_lot_are_a_margin_without_accuracy(tmp_path: Path) -> None:
    """The training pairs are learned by heart, and nothing follows from them for others."""
    rng = random.Random(1)
    rows = pairs(200)
    for row in rows:
        row["chosen"] = "".join(rng.choices("abcdefgh", k=6))
        row["rejected"] = "".join(rng.choices("abcdefgh", k=6))
    spoke = judged(
        tmp_path, renamed(rows[:16], "t"), renamed(rows[16:], "h"), train__learning_rate=5e-3
    )
    assert "margin_alone" in spoke
