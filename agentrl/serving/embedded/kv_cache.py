"""Keys and values of every sequence the engine knows, one row each, reused by prefix.

Invariant: rows `[0, num_active)` are being decoded, so one dense slice serves the whole batch.
Rows behind them keep what they hold until the room is needed: the next turn of a session
finds its own row, and siblings of a group copy the prompt instead of computing it again.

Legend: `_L` layers, `_R` rows, `_H` key-value heads, `_T` positions, `_D` head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from agentrl.serving.cache_room import tiled


class KvCache:
    """[L, 2, R, H, T, D] keys and values, with the token ids they belong to.

    The memory is claimed page by page on a CPU, so rows cost only the positions they have used.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_rows: int,
        num_heads: int,
        max_tokens: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_rows = num_rows
        self.max_tokens = max_tokens
        self.num_active = 0
        shape = (num_layers, 2, num_rows, num_heads, tiled(max_tokens), head_dim)
        self.data = _zeros(shape, dtype, device)
        self.ids_RT = np.full((num_rows, max_tokens), -1, dtype=np.int32)
        self.lengths = [0] * num_rows
        self._session = [""] * num_rows
        self._row_of: dict[str, int] = {}
        self._used = [0] * num_rows
        self._clock = 0

    def is_active(self, session_id: str) -> bool:
        """True while a turn of the session is being decoded."""
        row = self._row_of.get(session_id)
        return row is not None and row < self.num_active

    def claim(self, session_id: str) -> int | None:
        """An active row for a session: its own, else the least valuable idle one.

        Returns:
            The row, now inside the active range, or None when every row is active. Its `lengths`
            entry says how many positions hold the session's own past.
        """
        row = self._row_of.get(session_id)
        if row is None:
            if self.num_active == self.num_rows:
                return None
            # Rows whose session has ended go first, then the one idle for longest.
            row = min(
                range(self.num_active, self.num_rows),
                key=lambda r: (bool(self._session[r]), self._used[r]),
            )
            self._row_of.pop(self._session[row], None)
            self._session[row] = session_id
            self._row_of[session_id] = row
            self.lengths[row] = 0
        elif row < self.num_active:
            raise ValueError(f"session {session_id!r} has a turn in flight already")
        self._swap(row, self.num_active)
        self.num_active += 1
        return self.num_active - 1

    def retire(self, row: int) -> None:
        """Take an active row out of the batch and keep what it holds.

        The last active row moves to its index.
        """
        self._clock += 1
        self._used[row] = self._clock
        self._swap(row, self.num_active - 1)
        self.num_active -= 1

    def forget_session(self, session_id: str) -> None:
        """The session is over; its row may serve others, and its prefix until then."""
        row = self._row_of.pop(session_id, None)
        if row is not None:
            self._session[row] = ""

    def drop_idle(self) -> None:
        """Forget what idle rows hold: their values belong to weights that are gone."""
        for row in range(self.num_active, self.num_rows):
            self.lengths[row] = 0

    def adopt_prefix(self, row: int, prompt: np.ndarray) -> int:
        """Give `row` the longest prefix of `prompt` that any row holds.

        At least the last token is left to compute, since its logits are needed.

        Returns:
            How many positions of `row` now hold the prompt.
        """
        limit = len(prompt) - 1
        if limit <= 0:
            self.lengths[row] = 0
            return 0
        same_RT = self.ids_RT[:, :limit] == prompt[None, :limit]
        match_R = np.where(same_RT.all(axis=1), limit, same_RT.argmin(axis=1))
        match_R = np.minimum(match_R, self.lengths)
        own, donor = int(match_R[row]), int(match_R.argmax())
        if int(match_R[donor]) > own:
            own = int(match_R[donor])
            self.copy(donor, row, own)
        self.lengths[row] = own
        self.ids_RT[row, own:] = -1
        return own

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row to another."""
        self.data[:, :, target, :, :length] = self.data[:, :, source, :, :length]
        self.ids_RT[target, :length] = self.ids_RT[source, :length]
        self.lengths[target] = length

    def append_ids(self, row: int, ids: Sequence[int] | np.ndarray) -> None:
        """Record that the keys and values of `ids` were written behind what the row held."""
        start = self.lengths[row]
        self.ids_RT[row, start : start + len(ids)] = ids
        self.lengths[row] = start + len(ids)

    def _swap(self, a: int, b: int) -> None:
        if a == b:
            return
        length_a, length_b = self.lengths[a], self.lengths[b]
        kept = self.data[:, :, a, :, :length_a].clone() if length_a else None
        if length_b:
            self.data[:, :, a, :, :length_b] = self.data[:, :, b, :, :length_b]
        if kept is not None:
            self.data[:, :, b, :, :length_a] = kept
        self.ids_RT[[a, b]] = self.ids_RT[[b, a]]
        for column in (self.lengths, self._session, self._used):
            cells: list[Any] = column
            cells[a], cells[b] = cells[b], cells[a]
        for row in (a, b):
            if self._session[row]:
                self._row_of[self._session[row]] = row


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeroed memory: positions behind a short row are masked, but a stray NaN there would not be.

    On a CPU numpy asks the kernel for zero pages, which cost nothing until they are written.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = int(np.prod(shape)) * torch.finfo(dtype).bits // 8
    return torch.from_numpy(np.zeros(size, dtype=np.uint8)).view(dtype).view(shape)
