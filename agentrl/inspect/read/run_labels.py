"""Labels of reviewers and judges: of one rollout, and of a run with how far they agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from agentrl.data.run.labels import RolloutLabel, labels_by_rollout, read_labels
from agentrl.data.store.columns import unescape
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import shown
from agentrl.judges.reviewers import ReviewerAgreement, reviewer_agreements


def labels_answer(reader: RunReader, kind: str, step: int, rollout: str) -> list[dict[str, Any]]:
    """Labels and comments that reviewers have given a rollout, oldest first."""
    given = labels_by_rollout(reader.paths.labels_file)
    return [
        asdict(each) | {"label": shown(each.label), "comment": shown(each.comment)}
        for each in given.get((kind, step, unescape(rollout)), ())
    ]


def agreements_of(reader: RunReader, found: Iterable[RolloutLabel]) -> list[ReviewerAgreement]:
    """Agreement of every two reviewers; intervals are resampled by the tasks of the rollouts."""
    whole = [one for one in found if one.label and one.first_token is None]
    if not whole:
        return []
    reader.rows.refresh()
    index = reader.rows.table().select(["kind", "step", "rollout_id", "task_id"]).to_pydict()
    keys = zip(index["kind"], index["step"], index["rollout_id"], strict=True)
    tasks: dict[object, str] = dict(zip(keys, index["task_id"], strict=True))
    # A rollout that is no longer stored stands for itself.
    return reviewer_agreements(
        ((one.by, one.key, one.label) for one in whole), task_of=lambda key: tasks.get(key, key)
    )


def run_labels(reader: RunReader) -> dict[str, Any]:
    """Counts of each word, and the agreement of every two reviewers on whole rollouts."""
    found = read_labels(reader.paths.labels_file)
    agreements = agreements_of(reader, found)
    words = Counter(shown(one.label, 200) for one in found if one.label)
    return {
        "count": len(found),
        "words": dict(words.most_common()),
        "agreements": [
            asdict(one)
            | {name: shown(getattr(one, name), 200) for name in ("first", "second", "label")}
            for one in agreements
        ],
    }
