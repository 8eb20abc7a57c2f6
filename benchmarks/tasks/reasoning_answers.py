"""What the verifiers of reasoning-gym pay for answers that solve nothing.

    python benchmarks/tasks/reasoning_answers.py [TASKS_A_LEVEL]

Every generator at levels 0 and 2, against answers that do not depend on the puzzle, and mutations
of the right answer that are another one. Printed are those that the verifier alone calls right on
more tasks than have this very answer, with what is left of it in `agentrl_envs.reasoning`.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from random import Random
from typing import Any

from agentrl_envs.reasoning import families, make_tasks
from agentrl_envs.reasoning.forms import refusal
from agentrl_envs.reasoning.verify import SETTINGS

CONSTANTS = (
    "", "0", "1", "-1", "2", "3", "10", "0.5", "0.0", "1.0", "0.", "yes", "no", "Yes", "No", "true",
    "True", "False", "None", "null", "[]", "[[]]", "{}", "()", "nan", "inf", "-inf", "A", "B", "C",
    "a", "x", "i", "0 days", "00:00", "1/1", "0/1", '""', "''", ".", ",", "-", "*", "?", "!", "\n",
    "the", "impossible", "infeasible", "Monday", "Sunday", "Alice", "knight", "up", "right", "UP",
    "1e999", "0e0", "1_0", "0x0", "\u0661",
)  # fmt: skip


def mutations(answer: str, entry: dict[str, Any]) -> dict[str, str]:
    """Other answers, made of the right one or of the question."""
    question = entry["question"]
    sorted_ones = len(entry["metadata"].get("original_numbers", "ab"))
    numbers = re.findall(r"-?\d+(?:\.\d+)?", question)
    moves = Random(0).choices("LRUD", k=15_000)
    cars = " ".join(f"{c}{s}{n}" for c, s, n in zip(
        Random(1).choices("ABCDEFGHIJKLM", k=4000), Random(2).choices("+-", k=4000),
        Random(3).choices("1234", k=4000), strict=True))  # fmt: skip
    found = {
        "the question": question,
        "its first number": numbers[0] if numbers else "",
        "its last number": numbers[-1] if numbers else "",
        "its numbers": " ".join(numbers),
        "its numbers as a list": json.dumps([float(n) for n in numbers]),
        "as many NaN": json.dumps([float("nan")] * sorted_ones),
        "random pushes": "".join(moves),
        "random cars, then the red one": cars + " A+5" * 20,
        "its last word": question.split()[-1],
    }
    if answer:
        found |= {
            "first character": answer[:1],
            "first two": answer[:2],
            "all but the last": answer[:-1],
            "and another character": f"{answer}9",
            "and another line": f"{answer}\n0",
            "and another answer": f"{answer} or 17",
            "after another answer": f"17 or {answer}",
            "twice": f"{answer} {answer}",
            "backwards": answer[::-1],
            "every digit 1": re.sub(r"\d", "1", answer),
            "negative": f"-{answer}",
            "in a list": f"[{answer}]",
            "rounded": answer.partition(".")[0],
        }
    return found


def same(one: str, other: str) -> bool:
    """True for answers that differ in case, space, quotes and leading zeros at most."""

    def plain(text: str) -> str:
        return re.sub(r"[\s\"'\[\]+,]|(?<![\d.])0+(?=\d)|\.0+$", "", text.lower())

    return plain(one) == plain(other)


def score(verifier: Any, answer: str, entry: dict[str, Any]) -> float:
    try:
        return min(1.0, float(verifier(answer=answer, entry=entry)))
    except Exception:  # what the verifier does with an answer it did not expect
        return 0.0


def main(count: int) -> None:
    from reasoning_gym.factory import create_dataset

    print("| generator | answer | verifier alone | here | tasks |\n| --- | --- | --- | --- | --- |")
    for family in families():
        verifier = create_dataset(family, **SETTINGS.get(family, {})).score_answer
        alone: Counter[str] = Counter()
        here: Counter[str] = Counter()
        total = 0
        for level in (0, 2):
            try:
                tasks = make_tasks(families=[family], levels=[level], n=count)
            except Exception as error:
                print(f"<!-- {family} level {level}: {type(error).__name__} -->")
                continue
            for task in tasks:
                entry = task.label
                right = entry["answer"] if isinstance(entry["answer"], str) else ""
                total += 1
                tried = {f"`{text!r}`": text for text in CONSTANTS} | mutations(right, entry)
                for name, text in tried.items():
                    if (right and same(text, right)) or score(verifier, text, entry) < 1:
                        continue
                    alone[name] += 1
                    here[name] += not refusal(family, text, entry)
        for name, paid in alone.most_common(6):
            print(f"| {family} | {name} | {paid} | {here[name]} | {total} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 25)
