"""Muon for matrices of which every rank holds a part, as FSDP2 and ZeRO divide them.

Momentum looks at each number by itself, so every rank keeps it for its own part. Newton-Schulz
needs whole matrices: the ranks take turns, each orthogonalises its share of them, and sends every
other rank the part of the update that is its own.

    round k    rank r is sent all parts of matrix k * ranks + r      all to all
               rank r orthogonalises it
               rank r sends the parts of the update                  all to all

The largest matrices come first, so that those of a round are about equal. Beside its parts a rank
holds one whole matrix at a time.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup, all_to_all_single

from agentrl.train.optim.muon import MOMENTUM, muon


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixPart:
    """A consecutive part of one matrix, read row by row, in a tensor that an optimizer moves."""

    shape: tuple[int, int]
    """Rows and columns of the whole matrix."""
    sizes: tuple[int, ...]
    """Count of numbers on every rank, in the order of the matrix; one alone is all of it."""
    tensor: Tensor
    """Holds this rank's numbers, perhaps beside those of other matrices."""
    start: int
    """Position of the first of them in `tensor`, flat."""
    rank: int
    """Rank of this process, which is the index of its count in `sizes`."""

    def of(self, flat: Tensor) -> Tensor:
        """This rank's numbers in a flat tensor that is laid out as `tensor`."""
        return flat[self.start : self.start + self.sizes[self.rank]]


def momentum_of(tensor: Tensor, state: MutableMapping[Any, Any]) -> Tensor:
    """The momentum that an optimizer keeps for a tensor in its `state`, zeros at first."""
    own = state[tensor]
    if "momentum_buffer" not in own:
        own["momentum_buffer"] = torch.zeros_like(tensor)
    return own["momentum_buffer"]


@torch.no_grad()
def step_matrices(
    parts: Sequence[MatrixPart],
    momenta: Sequence[Tensor],
    *,
    learning_rate: float,
    weight_decay: float,
    group: ProcessGroup | None,
    device: torch.device,
) -> None:
    """Move matrices by Muon, exactly as `muon` moves whole ones. All ranks of `group` call.

    Args:
        parts: of matrices with a gradient, the same matrices in the same order on every rank.
        momenta: of each part, in the layout of its tensor; changed in place.
        learning_rate: of the step.
        weight_decay: decoupled, as AdamW's.
        group: the ranks that hold the parts; None where every rank holds all.
        device: that computes, wherever the parts are.
    """
    for tensor in {id(part.tensor): part.tensor for part in parts}.values():
        tensor.mul_(1 - learning_rate * weight_decay)
    order = sorted(range(len(parts)), key=lambda i: (-parts[i].shape[0] * parts[i].shape[1], i))
    ranks = 1 if group is None else group.size()
    for first in range(0, len(order), ranks):
        chosen = order[first : first + ranks]
        moves = _orthogonal(
            [parts[i] for i in chosen],
            [_look_ahead(parts[i], momenta[i]).to(device) for i in chosen],
            learning_rate=learning_rate,
            group=group,
        )
        for i, move in zip(chosen, moves, strict=True):
            own = parts[i].of(parts[i].tensor.detach().view(-1))
            own.add_(move.to(own.device))


def _look_ahead(part: MatrixPart, momentum: Tensor) -> Tensor:
    """Nesterov's g + mu (m - g) with the momentum m that has just taken the gradient g in."""
    assert part.tensor.grad is not None, "a part without a gradient"
    grad = part.of(part.tensor.grad.view(-1))
    return grad.lerp(part.of(momentum.view(-1)).lerp_(grad, 1 - MOMENTUM), MOMENTUM)


def _orthogonal(
    parts: Sequence[MatrixPart],
    looks: Sequence[Tensor],
    *,
    learning_rate: float,
    group: ProcessGroup | None,
) -> Sequence[Tensor]:
    """The moves of this rank's parts of one round: matrix r is put together on rank r."""
    if group is None:
        return [
            _move(look.view(part.shape), learning_rate).view(-1)
            for part, look in zip(parts, looks, strict=True)
        ]
    rank, like = group.rank(), looks[0]
    mine = parts[rank] if rank < len(parts) else None
    sent = [len(look) for look in looks] + [0] * (group.size() - len(looks))
    received = [0] * group.size() if mine is None else list(mine.sizes)
    whole = like.new_empty(sum(received))
    all_to_all_single(whole, torch.cat(list(looks)), received, sent, group=group)
    if mine is not None:
        whole = _move(whole.view(mine.shape), learning_rate).reshape(-1)
    moves = like.new_empty(sum(sent))
    all_to_all_single(moves, whole, sent, received, group=group)
    return moves.split(sent[: len(parts)])


def _move(look: Tensor, learning_rate: float) -> Tensor:
    """The change of a matrix whose momentum has been looked ahead of, by torch's Muon."""
    moved = nn.Parameter(torch.zeros_like(look))
    moved.grad = look
    muon([moved], learning_rate=learning_rate, weight_decay=0.0, momentum=0.0).step()
    return moved.detach()
