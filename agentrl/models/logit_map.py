"""Steps between a model's hidden states and its logits, beside the linear head: scales, a soft cap.

Cohere multiplies its logits, Granite divides them, Gemma caps them, MiniCPM 3 divides the hidden
states. Trainer and engine run body and head on their own, so they have to do it, too. It is not
read from names in configs, of which every family has others: the model's own forward is called with
numbers of ours in the place of what its body and its head return, and nothing is computed by them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_POINTS = (-1e9, -40.0, -3.0, -1.0, -1e-4, 0.0, 1e-4, 0.5, 2.0, 25.0, 1e9)
"""Numbers whose ways are followed: small ones show a scale, huge ones a cap."""
_SMALL = _POINTS.index(1e-4)
_CLOSE = 1e-6
"""Share of a number; some models form their logits in float32, whatever the rest is."""
_KEPT = "agentrl_logit_map"
_BODIES = ("model", "transformer")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitMap:
    """Logits are `cap * tanh(scale * z / cap)`, with z of the head for `before` times its input."""

    before: float = 1.0
    """Factor on the hidden states."""
    scale: float = 1.0
    """Factor on what the head gives."""
    cap: float | None = None
    """Bound that logits come near to; None for none."""

    @property
    def changes_logits(self) -> bool:
        """True if logits are others than what the head gives."""
        return self.scale != 1.0 or self.cap is not None

    def into_head(self, hidden: Tensor) -> Tensor:
        """The hidden states as the head is given them."""
        return hidden if self.before == 1.0 else hidden * self.before

    def apply_(self, raw: Tensor) -> Tensor:
        """Logits, written over what the head gave."""
        if self.scale != 1.0:
            raw *= self.scale
        if self.cap is not None:
            raw.div_(self.cap).tanh_().mul_(self.cap)
        return raw

    def slope(self, logits: Tensor) -> Tensor:
        """Derivative of logits in what the head gave, from the logits."""
        assert self.cap is not None
        return (logits / self.cap).square_().neg_().add_(1.0).mul_(self.scale)


def body_of(model: Any) -> Any:
    """The part of a language model that ends in hidden states; the model where there is none."""
    body = getattr(model, "base_model", model)
    if body is not model:
        return body
    # Llama 4's text model names the body of another model as its own.
    return next((part for name in _BODIES if (part := getattr(model, name, None))), model)


def logit_map(model: Any) -> LogitMap:
    """The map of a model with a linear head; found once, while no other thread changes the model.

    A model whose forward cannot be followed, or does something else, has the map that does nothing:
    the proof of the model compares the results.
    """
    found = model.__dict__.get(_KEPT)
    if found is None:
        found = _measured(model) or LogitMap()
        setattr(model, _KEPT, found)
    return found


def _measured(model: Any) -> LogitMap | None:
    body, head = body_of(model), model.get_output_embeddings()
    if body is model or not isinstance(head, nn.Linear):
        return None
    points = torch.tensor(_POINTS, dtype=torch.float64)
    hidden = points[None, :, None].expand(1, -1, head.in_features)
    given: list[Tensor] = []

    def of_head(states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        given.append(states)
        return points[None, :, None].expand(1, -1, head.out_features).clone()

    stand_in = _with_parts(
        model, {body: lambda *args, **kwargs: _BodyOutput(hidden.clone()), head: of_head}
    )
    if stand_in is None:
        return None
    ids = torch.ones(1, len(points), dtype=torch.long)
    try:
        with torch.no_grad():
            logits = stand_in(input_ids=ids, use_cache=False).logits
    except Exception:  # any code of any model; what it does is compared later
        return None
    if len(given) != 1 or given[0].shape != hidden.shape or logits.shape[-1] != head.out_features:
        return None
    inside, out = given[0][0].double(), logits[0].double()
    if not (torch.equal(inside, inside[:, :1].expand_as(inside)) and _is_one_column(out)):
        return None
    return _fit(points, inside[:, 0], out[:, 0])


def _is_one_column(out: Tensor) -> bool:
    return torch.equal(out, out[:, :1].expand_as(out))


def _fit(points: Tensor, inside: Tensor, out: Tensor) -> LogitMap | None:
    """The map that gives what was seen; None where none does."""
    before = float(inside[_SMALL] / points[_SMALL])
    scale, far = float(out[_SMALL] / points[_SMALL]), float(out[-1])
    if abs(scale - 1.0) < _CLOSE:
        scale = 1.0
    capped = abs(far) < 0.5 * abs(scale * float(points[-1]))
    found = LogitMap(before=before, scale=scale, cap=far if capped else None)
    same_before = torch.allclose(inside, points * before, rtol=_CLOSE, atol=0.0)
    same = torch.allclose(out, found.apply_(points.clone()), rtol=4 * _CLOSE, atol=1e-12)
    return found if same and same_before else None


class _BodyOutput:
    """Hidden states as any body returns them; whatever else is asked for is None."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _with_parts(model: Any, forwards: dict[Any, Any]) -> Any:
    """A copy of the model's shell in which some of its direct parts have another forward.

    The weights are the model's own, and the model itself is not changed: it may be in use.
    """
    shell = copy.copy(model)
    shell.__dict__["_modules"] = dict(model._modules)
    for part, forward in forwards.items():
        name = next((name for name, child in model._modules.items() if child is part), None)
        if name is None:
            return None
        double = copy.copy(part)
        double.forward = forward
        shell.__dict__["_modules"][name] = double
    return shell
