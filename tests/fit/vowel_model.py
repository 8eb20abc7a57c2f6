"""A reward model of the tiny project that likes vowels, made by `agentrl fit`, and pairs for it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.fit.fit_project import write_fit, write_rows
from tests.runtime.tiny_project import agentrl


def mixed_pairs(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """The answer with more vowels is better, most of the time: one label of six is wrong."""
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        texts = []
        while len(texts) < 2:
            text = "".join(rng.choices("aeiouxyzkq", k=rng.randint(4, 12)))
            if all(vowels(text) != vowels(other) for other in texts):
                texts.append(text)
        better, worse = sorted(texts, key=vowels, reverse=True)
        if rng.random() < 1 / 6:
            better, worse = worse, better
        rows.append({
            "id": f"m{seed}-{number}", "prompt": f"say {number}", "chosen": better,
            "rejected": worse,
        })  # fmt: skip
    return rows


def vowels(text: str) -> float:
    return sum(letter in "aeiou" for letter in text) / len(text)


def write_vowel_model(folder: Path, *, seed: int = 0, loss: str = "bt") -> Path:
    """Train one; returns its run directory, with `held.jsonl` and `other.jsonl` beside it."""
    path = write_fit(
        folder, "rm",
        data__source="mixed.jsonl", data__examples_per_step=16, data__epochs=8, run__seed=seed,
        train__learning_rate=3e-3, objective__loss=loss, eval__datasets={},
        checkpoint__every_steps=100,
    )  # fmt: skip
    for name, count, number in (("mixed", 256, 1), ("held", 60, 2), ("other", 60, 3)):
        write_rows(folder / f"{name}.jsonl", mixed_pairs(count, seed=number))
    status, text = agentrl(folder / "fit.log", "fit", path)
    assert status == 0, text
    return folder / "runs" / "fit"
