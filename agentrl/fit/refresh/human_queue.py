"""A queue on disk of pairs that a person labels; nothing waits for answers.

    refresh after step 4   answers of files that have one are used; new pairs become files
    somebody               writes "better": "a", "b" or "tie" into RUN/refresh/queue/*.json
    refresh after step 8   uses those answers

A file holds the tokens of both rollouts, so it needs nothing but itself. It stays where it is:
which answers were used stands in the records of the refreshes, so a kill loses none.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from agentrl.fit.refresh.candidates import CandidatePair, NewestPairs, completion_of
from agentrl.fit.refresh.labels import PairLabels
from agentrl.machine.files import write_whole
from agentrl.types import Completion, PreferencePair, Task, Trajectory

_ANSWERS = ("a", "b", "tie")


class HumanQueue:
    """Labels pairs by the answers in a folder, and puts new pairs there."""

    def __init__(self, folder: Path, used: Collection[str]) -> None:
        """Look at nothing yet.

        Args:
            folder: of the files; made if needed.
            used: ids of pairs whose answers earlier refreshes have used.
        """
        self._folder, self._used = folder, used

    async def label(self, newest: NewestPairs, most: int) -> PairLabels:
        """`label` as in `PairLabeller.label`; at most `most` pairs wait at once.

        Raises:
            OSError: the folder cannot be written.
        """
        labels, known = PairLabels(), set[str]()
        for file in sorted(self._folder.glob("*.json")):
            known.add(file.stem)
            if file.stem not in self._used:
                _read(file, labels)
        self._folder.mkdir(parents=True, exist_ok=True)
        while labels.waiting < most and (asked := await newest.take(1)):
            for pair in asked:
                if pair.key not in known:
                    write_whole(self._folder / f"{pair.key}.json", _written(pair))
                    labels.waiting += 1
        return labels


def _written(pair: CandidatePair) -> bytes:
    rows = {"a": pair.a, "b": pair.b}
    document = {
        "question": "Which answer is better? Set better to a, b or tie, and save this file.",
        "better": None,
        "task": _task_text(pair.task),
        **{name: _text(row) for name, row in rows.items()},
        "task_id": pair.task.id,
        "step": pair.step,
        "rollouts": {name: row.rollout_id for name, row in rows.items()},
        "prompt_ids": list(pair.a.prompt_ids),
        "tokens": {name: _tokens(row) for name, row in rows.items()},
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def _tokens(row: Trajectory) -> dict[str, list[int]]:
    found = completion_of(row)
    return {"ids": list(found.ids), "mask": list(found.mask)}


def _task_text(task: Task) -> str:
    if isinstance(task.prompt, str):
        return task.prompt
    return "\n\n".join(f"[{message.role}]\n{message.content}" for message in task.prompt)


def _text(row: Trajectory) -> str:
    return "\n\n".join(f"[{turn.role}]\n{turn.text}" for turn in row.turns)


def _read(file: Path, labels: PairLabels) -> None:
    """Count the file as waiting, tied or broken, or add its pair."""
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
        better = found["better"]
        if better is None:
            labels.waiting += 1
            return
        if better not in _ANSWERS:
            raise ValueError(f"better is {better!r}, expected one of {', '.join(_ANSWERS)}")
        pair = None if better == "tie" else _pair(file, found, better)
    except (OSError, ValueError, KeyError, TypeError) as error:
        labels.fail(f"{file}: {type(error).__name__}: {error}")
        return
    labels.answers.append(file.stem)
    if pair is None:
        labels.ties += 1
    else:
        labels.pairs.append(pair)


def _pair(file: Path, found: dict[str, Any], better: str) -> PreferencePair:
    tokens = {
        name: Completion(ids=_numbers(each["ids"]), mask=_numbers(each["mask"]))
        for name, each in found["tokens"].items()
    }
    return PreferencePair(
        id=file.stem,
        prompt_ids=_numbers(found["prompt_ids"]),
        chosen=tokens[better],
        rejected=tokens["b" if better == "a" else "a"],
        task_id=str(found["task_id"]),
        source=f"step {found['step']}, answered in {file.name}",
    )


def _numbers(values: list[Any]) -> tuple[int, ...]:
    """Token ids, or a mask; one file that was damaged must not cost the answers of all others."""
    if wrong := [value for value in values if type(value) is not int or value < 0]:
        raise ValueError(f"tokens hold {wrong[0]!r}, expected whole numbers; restore the file")
    return tuple(values)
