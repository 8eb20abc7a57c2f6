"""The trained tokens of a step with the numbers of sampler and trainer: the join of trajectories
and token files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl.cli.replay.recorded_run import RecordedRun
from agentrl.errors import RunError
from agentrl.types import TrainedTokens, Trajectory

Numbers = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GapTable:
    """The trained tokens of one step. Every array is [T], one number for each of them."""

    sampler: Numbers
    """Log-probability at the sampler."""
    trainer: Numbers
    """Log-probability at the trainer, before the step."""
    entropy: Numbers
    """Entropy of the policy at the token, in nats."""
    lag: Whole
    """Steps between the weights that sampled it and those it is trained from."""
    turn: Whole
    """Assistant turn of its row, from 1."""
    in_turn: Whole
    """Which sampled token of the turn it is, from 1."""
    position: Whole
    """Tokens before it, prompt included."""
    row: Whole
    """`Trajectory.row_index`."""
    rollout: Whole
    """Index into `rollout_ids`."""
    response: Whole
    """Position in the response of its row."""
    token: Whole
    """Id of the token."""
    rollout_ids: tuple[str, ...]
    """Names."""

    @property
    def gap(self) -> Numbers:
        """[T] Trainer minus sampler, in nats."""
        return self.trainer - self.sampler

    @property
    def size(self) -> Numbers:
        """[T] Absolute value of the gap."""
        return np.abs(self.gap)

    def __len__(self) -> int:
        return len(self.sampler)


def read_gaps(run: RecordedRun, step: int) -> GapTable:
    """Join the numbers of the sampler and the trainer for the tokens of a step.

    Raises:
        RunError: there is nothing to join.
    """
    trained = {(row.group_id, row.rollout_id, row.row_index): row for row in run.trained(step)}
    columns: dict[str, list[NDArray]] = {}
    names: dict[str, int] = {}
    for group in run.groups(step):
        for row in group.trajectories:
            known = trained.get((row.group_id, row.rollout_id, row.row_index))
            if known is None:
                continue
            index = names.setdefault(row.rollout_id, len(names))
            for name, values in _row_columns(row, known, index, version=step - 1).items():
                columns.setdefault(name, []).append(values)
    if not sum(map(len, columns.get("sampler", ()))):
        have = ", ".join(map(str, run.tokens.steps())) or "none"
        raise RunError(
            f"{run.path} holds no readable tokens of step {step}: it trained nothing, or "
            f"log.tokens was false; steps with tokens: {have}"
        )
    return GapTable(
        **{name: np.concatenate(values) for name, values in columns.items()},
        rollout_ids=tuple(names),
    )


def _row_columns(
    row: Trajectory, known: TrainedTokens, rollout: int, *, version: int
) -> Mapping[str, NDArray]:
    """The columns of a table for the trained tokens of one row."""
    parts = (known.trained, known.old_log_probs, known.entropy, row.response_ids)
    length = min(map(len, parts))
    sampler = np.asarray(row.rollout_log_probs[:length], dtype=np.float64)
    trainer = np.asarray(known.old_log_probs[:length], dtype=np.float64)
    trained = np.asarray(known.trained[:length], dtype=bool)
    at = np.flatnonzero(trained & np.isfinite(sampler) & np.isfinite(trainer))
    turn, in_turn = _turns(row)
    versions = np.asarray(row.policy_versions, dtype=np.int64)[at]
    return {
        "sampler": sampler[at],
        "trainer": trainer[at],
        "entropy": np.asarray(known.entropy, dtype=np.float64)[at],
        "lag": np.maximum(0, version - versions),
        "turn": turn[at],
        "in_turn": in_turn[at],
        "position": at + len(row.prompt_ids),
        "row": np.full(len(at), row.row_index),
        "rollout": np.full(len(at), rollout),
        "response": at,
        "token": np.asarray(row.response_ids, dtype=np.int64)[at],
    }


def _turns(row: Trajectory) -> tuple[Whole, Whole]:
    """By response position: the assistant turn, and which sampled token of it, both from 1."""
    turn = np.zeros(len(row.response_ids), dtype=np.int64)
    in_turn = np.zeros(len(row.response_ids), dtype=np.int64)
    sampled = np.asarray(row.response_mask, dtype=np.int64)
    spoken = (item for item in row.turns if item.role == "assistant")
    for number, span in enumerate(spoken, 1):
        turn[span.start : span.end] = number
        in_turn[span.start : span.end] = np.cumsum(sampled[span.start : span.end])
    return turn, in_turn
