"""Answers that are each called good or bad, without another one to compare with (KTO).

prompt, completion, label        TRL's unpaired layout; texts or messages, with calls of tools
any layout of pairs              the chosen answer is good, the rejected one is not
run:FOLDER                       rollouts of a run, good from a score on
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentrl.config.schema import DatasetSection
from agentrl.data.example_rows import (
    ANSWERS,
    PROMPTS,
    RowIds,
    first_of,
    mapped,
    own_number,
    prompt_in,
    read_rows,
    row_name,
    tools_in,
    weight_of,
)
from agentrl.data.run.paths import RunPaths
from agentrl.data.run.read import require_run
from agentrl.data.store.trajectory_store import TrajectoryStore
from agentrl.data.tasks.files import SourceRow
from agentrl.data.tasks.formats import ABSENT
from agentrl.errors import ConfigError, DataError, choices
from agentrl.fit.data.preferences.completions import completion_of
from agentrl.fit.data.preferences.load import MAPPED, PairReading
from agentrl.types import Completion, Conversation, PreferencePair, Trajectory
from agentrl.types.solved import reaches

COLUMNS = ("completion", "label", *MAPPED)
"""What columns may be mapped; each is also the column taken when it is not."""

_INSTEAD = {"prompt": PROMPTS[1:], "completion": ANSWERS[1:]}
_WORDS = {"true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledAnswer:
    """An answer to a prompt, and whether it is one that should be given."""

    conversation: Conversation
    """Prompt and answer."""
    desirable: bool
    """True for an answer that should be given."""
    label_probability: float | None = None
    """Probability that the verdict is right; None takes it as certain."""


class LoadedVerdicts(list[LabelledAnswer]):
    """Answers in the order of their source, and what was left out on the way."""

    def __init__(self) -> None:
        """Begin without an answer."""
        super().__init__()
        self.left_out = Counter[str]()
        """Rows that are not among them, by reason."""


def load_verdicts(
    source: str,
    *,
    split: str = "train",
    columns: Mapping[str, str] | None = None,
    args: Mapping[str, Any] | None = None,
    limit: int | None = None,
    base: Path | None = None,
    min_score: float | None = None,
) -> LoadedVerdicts:
    """The labelled answers of a file, a folder, a Hugging Face dataset, a function or a run.

    Args:
        source: as `data.source` of a fit file.
        split: split to take, where the source has splits; of a run, the kind of rollouts.
        columns: maps the names of `COLUMNS` to columns, or to paths into nested ones.
        args: keyword arguments of a function.
        limit: read only the first so many rows; of a run, take the first so many answers.
        base: folder that relative paths start from; default the working directory.
        min_score: of a run, which needs it: rollouts from this score on are desirable.

    Raises:
        DataError: no such source, no rows, or a broken row; names the file and the row.
        RunError: `run:` names no run directory.
        ConfigError: an import string or a column mapping that cannot be used, or no `min_score`.
    """
    if source.startswith("run:"):
        if min_score is None:
            raise ConfigError(
                f"{source!r} has rollouts with scores and no verdicts; set min_score, from which "
                "on a rollout is desirable"
            )
        folder = (base or Path.cwd()) / Path(source.removeprefix("run:")).expanduser()
        return _of_run(folder, kind=split, min_score=min_score, limit=limit)
    columns = columns or {}
    for name in columns:
        if name not in COLUMNS:
            raise ConfigError(f"columns of answers with a verdict: {choices(name, COLUMNS)}")
    found, ids, pairs = LoadedVerdicts(), RowIds(), PairReading()

    def add(row: SourceRow) -> None:
        named = mapped(row, columns, instead=_INSTEAD)
        values = named.values
        if isinstance(values, Mapping) and values.get("label") is not None:
            verdict = _labelled(named, ids)
            ids.add(verdict.conversation.id, row.where)
            found.append(verdict)
        else:
            pairs.add_row(row, columns)

    read_rows(
        DatasetSection(source=source, split=split, args=dict(args or {})),
        add,
        base=base,
        limit=limit,
        collect_broken=False,
        what="preference",
    )
    compared = pairs.finished()
    for pair in compared:
        for verdict in unpaired(pair):
            ids.add(verdict.conversation.id, pair.source)
            found.append(verdict)
    found.left_out.update(compared.left_out())
    return found


def _labelled(row: SourceRow, ids: RowIds) -> LabelledAnswer:
    values: Mapping[str, Any] = row.values
    prompt, answer = prompt_in(row), first_of(values, ANSWERS)
    if answer is ABSENT:
        raise DataError(
            f"{row.where}: a label, and none of the columns {', '.join(ANSWERS)} that it is of; "
            "map it with data.columns, as in completion: NAME"
        )
    conversation = Conversation(
        id=ids.new(row_name(row)),
        prompt=prompt,
        completion=completion_of(row.where, answer, "completion", prompt),
        tools=tools_in(row),
        weight=weight_of(row),
        task_id=str(values.get("task_id") or ""),
        source=row.where,
    )
    return LabelledAnswer(
        conversation=conversation,
        desirable=_label(row),
        label_probability=own_number(row, "label_probability", 0.0, 1.0),
    )


def _label(row: SourceRow) -> bool:
    value = row.values["label"]
    if isinstance(value, bool):
        return value
    # Tables without booleans write them as words or numbers.
    found = _WORDS.get(str(value).strip().lower().removesuffix(".0"))
    if found is None:
        raise DataError(
            f"{row.where}: label is {ascii(value)[:60]}; expected true (desirable) or false"
        )
    return found


def unpaired(pair: PreferencePair) -> Iterator[LabelledAnswer]:
    """The chosen answer of a pair as a desirable one, the rejected one as one that is not."""
    for name, completion in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        conversation = Conversation(
            id=f"{pair.id}/{name}",
            prompt=pair.prompt,
            prompt_ids=pair.prompt_ids,
            completion=completion,
            tools=pair.tools,
            weight=pair.weight,
            task_id=pair.task_id,
            source=pair.source,
        )
        yield LabelledAnswer(
            conversation=conversation,
            desirable=name == "chosen",
            label_probability=pair.label_probability,
        )


def _of_run(folder: Path, *, kind: str, min_score: float, limit: int | None) -> LoadedVerdicts:
    """One answer for each stored row whose reward can be trusted; the same tokens come once."""
    require_run(folder)
    store = TrajectoryStore(RunPaths(folder).trajectories)
    if kind not in (kinds := store.kinds()):
        raise DataError(f"run {folder}: rollouts of kind {choices(kind, kinds)}")
    found, ids = LoadedVerdicts(), RowIds()
    seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    for step in store.steps(kind):
        for stored in store.read(kind, step=step):
            if limit is not None and len(found) >= limit:
                return found
            row = stored.trajectory
            score = row.reward if row.score is None else row.score
            if not row.rule.reward_trusted or score is None:
                found.left_out["no score that can be trusted"] += 1
                continue
            if not row.num_action_tokens or not row.prompt_ids:
                found.left_out["nothing was sampled"] += 1
                continue
            said = _sampled(row, f"{folder.name}/{kind}/{step}")
            said = replace(said, source=f"{folder}, {kind} step {step}, group {row.group_id}")
            key = said.prompt_ids, said.completion.ids
            if key in seen:
                found.left_out["the same tokens as another rollout"] += 1
                continue
            seen.add(key)
            ids.add(said.id, said.source)
            found.append(LabelledAnswer(conversation=said, desirable=reaches(score, min_score)))
    return found


def _sampled(row: Trajectory, where: str) -> Conversation:
    """The response up to its last sampled token: nothing behind it can be learned."""
    end = max(index for index, sampled in enumerate(row.response_mask) if sampled) + 1
    part = f"#{row.row_index}" if row.row_index else ""
    return Conversation(
        id=f"{where}/{row.rollout_id}{part}",
        prompt_ids=row.prompt_ids,
        completion=Completion(ids=row.response_ids[:end], mask=row.response_mask[:end]),
        task_id=row.task_id,
    )
