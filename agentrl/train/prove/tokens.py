"""Names of tokens that are the same however the work is divided, and slopes by these names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from torch import Tensor

from agentrl.batch.records import MicroBatch
from agentrl.train.prove.policies import positions_of


class TokenKey(NamedTuple):
    """One token, whatever row it is in."""

    rollout_id: str
    """Id of its rollout."""
    position: int
    """Position in the conversation, prompt included, from 0."""

    def __str__(self) -> str:
        return f"{self.rollout_id} at {self.position}"


class TokenSlopes(Mapping[TokenKey, float]):
    """Slope of the loss by the log-probability of each token; made when it is first looked at."""

    def __init__(self) -> None:
        self._parts: list[tuple[MicroBatch, list[int], list[float]]] = []
        self._known: dict[TokenKey, float] | None = None

    def add(self, micro: MicroBatch, index_A: Tensor, slope_A: Tensor) -> None:
        """Add those of one micro-batch: the response positions, and the slope at each."""
        self._parts.append((micro, index_A.tolist(), slope_A.tolist()))
        self._known = None

    def _slopes(self) -> dict[TokenKey, float]:
        if self._known is None:
            self._known = {}
            for micro, index, slopes in self._parts:
                keys = tokens_of(micro)
                self._known.update(zip((keys[at] for at in index), slopes, strict=True))
        return self._known

    def __getitem__(self, key: TokenKey) -> float:
        return self._slopes()[key]

    def __iter__(self) -> Iterator[TokenKey]:
        return iter(self._slopes())

    def __len__(self) -> int:
        return len(self._slopes())


def tokens_of(micro: MicroBatch) -> list[TokenKey]:
    """[R] Which token each response position is."""
    rollouts = [row.rollout_id for row in micro.rows]
    return [
        TokenKey(rollout_id=rollouts[row], position=position)
        for row, position in zip(micro.row_R.tolist(), positions_of(micro).tolist(), strict=True)
    ]
