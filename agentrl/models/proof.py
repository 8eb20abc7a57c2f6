"""Judges how far a model in use is from its own forward pass, and refuses what rounding cannot be.

The trainer and the embedded engine bring their numbers and those of the own forward; the record of
what was found is kept in `run.json`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import AgentrlError, ConfigError, RanksParted
from agentrl.models.own_forward import is_widened, rounding, widened

logger = logging.getLogger(__name__)

_NARROW_ROUNDINGS, _WIDE_ROUNDINGS = 4.0, 16.0
"""A pass may be as many times as far off as the own forward is after a change of last bits: in
bfloat16, where a fault may be as small as that; and in wider dtypes, where none is."""
_STEADY = 0.75
"""Part of the tokens of which the mean is taken, those that differ least: a router that changes its
mind between two experts of equal weight moves a token by a nat in bfloat16, and no other."""
_WORST = 16.0
"""Any token may differ by as many times the tolerance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProof:
    """The result of comparing a model in use with its own forward pass."""

    model: str
    """Class of the model."""
    dtype: str
    """Of its weights."""
    forms: Mapping[str, float]
    """Difference in each form: the mean over the three quarters of the tokens that differ least, in
    nats of log-probability, or in parts of the size of a hidden state for a critic."""
    worst: Mapping[str, float]
    """Difference of the token that differs most, in each form."""
    tolerance: float
    """Largest such difference that rounding explains."""
    worst_tolerance: float
    """Largest difference of one token that is allowed."""
    tokens: int
    """Tokens that were compared."""
    seconds: float
    """Time that it took."""
    attention: str = ""
    """Kernels of attention that computed the passes; empty where the model's own did."""
    widened: ModelProof | None = None
    """The same model with its 16-bit weights in float32, where a fault is far above rounding. Of
    one too large for a copy, or divided among ranks, the attention of the layer that differs most.
    None for one of wider weights, or whose layers compute in 16 bits alone."""

    @property
    def text(self) -> str:
        """As in `packed and prefix-shared as its own forward (within 1.3e-07, at most 2e-05)`."""
        found = self._text
        return found if self.widened is None else f"{found}; in float32 {self.widened._text}"

    @property
    def _text(self) -> str:
        *others, last = self.forms
        names = f"{', '.join(others)} and {last}" if others else last
        most, by = max(self.forms.values()), f" by {self.attention}" if self.attention else ""
        return f"{names}{by} as its own forward (within {most:.1g}, at most {self.tolerance:.1g})"

    def as_dict(self) -> dict[str, Any]:
        """The entry of `run.json`."""
        return asdict(self)


def gaps(found: Tensor, want: Tensor) -> Tensor:
    """Difference at each token: of log-probabilities in nats, of hidden states by their size.

    Args:
        found: [tokens] log-probabilities, or [tokens, E] hidden states.
        want: likewise.
    """
    found, want = found.double().cpu(), want.double().cpu()
    apart = torch.where(found == want, 0.0, (found - want).abs())
    if found.ndim == 1:
        return apart
    return apart.norm(dim=1) / want.norm(dim=1).clamp(min=torch.finfo(want.dtype).tiny)


def _steady(apart: Tensor) -> float:
    """Mean over the tokens that differ least, and not a number if any is none."""
    apart = apart.sort().values  # NaN comes last
    if not torch.isfinite(apart).all():
        return float("nan")
    return float(apart[: max(1, int(_STEADY * len(apart)))].mean())


def tolerated(want: Tensor, shaken: Tensor, dtype: torch.dtype) -> float:
    """The largest mean difference that rounding explains, for a model of some dtype.

    The spread of two forms of the own forward, one of them with embeddings changed in their last
    bits: roundings of all layers differ between the two as they do between two programs.

    Args:
        want: numbers of the own forward at some tokens.
        shaken: the same after the change.
        dtype: of the weights.
    """
    size = want.abs().double().mean().item() if want.ndim == 1 else 0.0
    wide = torch.promote_types(dtype, torch.float32) == dtype
    factor = _WIDE_ROUNDINGS if wide else _NARROW_ROUNDINGS
    return max(factor * _steady(gaps(shaken, want)), rounding(dtype) * (1.0 + size))


def check_causal(own: Tensor, ids: Any, *, tolerance: float, model: Any, who: str) -> None:
    """Refuse a model in which a token sees the ones behind it: it has no log-probabilities.

    Args:
        own: [N, ...] numbers of the own forward at each token of some rows, as `own_numbers`.
        ids: [N, L] tokens of the rows; the first two begin alike.
        tolerance: of `tolerated`.
        model: as it was loaded.
        who: as in `judged`.

    Raises:
        ConfigError: numbers of equal beginnings differ.
    """
    if len(ids) < 2:
        return
    alike = int((ids[0] != ids[1]).argmax()) - 1
    if alike > 0 and _steady(gaps(own[0][:alike], own[1][:alike])) > tolerance:
        part = model if not hasattr(model, "value_head") else model.body
        raise ConfigError(
            f"{who}: in {_named(part)} a token sees the ones behind it, so it is no causal "
            "language model; train one that is, or set is_decoder in its config.json, expected true"
        )


def judged(
    model: Any,
    found: Mapping[str, Tensor],
    *,
    tolerance: float,
    who: str,
    instead: str,
    began: float,
    dtype: torch.dtype | None = None,
    layers: bool = False,
    attention: str = "",
) -> ModelProof:
    """The proof of a model whose numbers are its own, in every form.

    Args:
        model: as it was loaded.
        found: difference at each token, by form.
        tolerance: of `tolerated`.
        who: names the model and its role at the beginning of a message.
        instead: advice at its end.
        began: `time.perf_counter()` at the beginning.
        dtype: that it computes in; default that of its weights.
        layers: `found` is what layers give in that dtype, and not the model.
        attention: kernels that computed the passes.

    Raises:
        ConfigError: a form in which they are not; with the numbers.
    """
    part = model if not hasattr(model, "value_head") else model.body
    named = str(dtype or next(part.parameters()).dtype).removeprefix("torch.")
    what, unit = "log-probabilities", "nats"
    if layers:
        what, unit = "layers", "of their size"
    elif part is not model:
        what, unit = "hidden states", "of their size"
    forms = {name: _steady(each) for name, each in found.items()}
    worst = {name: float(each.max()) for name, each in found.items()}
    wrong = {
        name: f"{name} by {forms[name]:.2g} {unit} (worst {worst[name]:.2g}, {len(each)} tokens)"
        for name, each in found.items()
        # Also what is no number.
        if not (forms[name] <= tolerance and worst[name] <= _WORST * tolerance)
    }
    if wrong:
        same = ", ".join(name for name in found if name not in wrong)
        raise ConfigError(
            f"{who}: {_named(part)} would be computed as another model: its {what} differ from "
            f"those of its own forward pass: {', '.join(wrong.values())}; rounding in {named} "
            f"explains {tolerance:.2g}{f' ({same} agrees)' if same else ''}{_reason(part)}. "
            f"{instead}"
        )
    return ModelProof(
        model=type(part).__name__,
        dtype=named,
        forms=forms,
        worst=worst,
        tolerance=tolerance,
        worst_tolerance=_WORST * tolerance,
        tokens=sum(len(each) for each in found.values()),
        seconds=round(time.perf_counter() - began, 3),
        attention=attention,
    )


def proven(
    model: Any, judge: Callable[[bool], ModelProof], *, who: str, widen: bool = True
) -> ModelProof:
    """The proof of a model as it is, and with its 16-bit weights in float32 where that can be.

    Rounding in 16 bits explains a fault of some tenths of a nat, and in float32 none.

    Args:
        model: as it was loaded.
        judge: compares it, with the dtype that it has at the moment; told whether it is the second
            time, in float32.
        who: as in `judged`.
        widen: False where a holder of the model keeps its weights elsewhere.

    Raises:
        ConfigError: as `judge`.
    """
    began = time.perf_counter()
    found = judge(False)
    if widen and is_widened(model):
        try:
            with widened(model):
                found = replace(found, widened=judge(True))
        except RanksParted:
            raise
        except Exception as error:
            if isinstance(error, ConfigError) and error.__cause__ is None:
                raise  # numbers that differ
            not_widened(who, error)
    found = replace(found, seconds=round(time.perf_counter() - began, 3))
    logger.info("%s: %s is %s", who, found.model, found.text)
    return found


def not_widened(who: str, error: Exception) -> None:
    """Note that a model is proven in 16 bits alone: kernels of a family may know no others."""
    logger.warning("%s: not compared in float32: %s", who, str(error)[:300])


@contextmanager
def refused_by_name(
    model: Any, *, who: str, form: Callable[[], str], instead: str
) -> Iterator[None]:
    """Inside, whatever the code of a family raises becomes a refusal that names it.

    Args:
        model: as it was loaded.
        who: as in `judged`.
        form: names what is computed at the moment.
        instead: as in `judged`.

    Raises:
        ConfigError: in the place of anything but the lack of memory, or of another rank.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RanksParted, ConfigError):
        raise
    except Exception as error:  # the code of 150 families may raise anything
        part = model if not hasattr(model, "value_head") else model.body
        ours = isinstance(error, AgentrlError)
        text = str(error) if ours else f"{type(error).__name__}: {str(error)[:300]}"
        raise ConfigError(
            f"{who}: {_named(part)} cannot be computed {form()}: {text}{_reason(part)}. {instead}"
        ) from error


def _named(model: Any) -> str:
    return f"{type(model).__name__} ({model.config.model_type})"


def _reason(model: Any) -> str:
    if getattr(model, "_supports_attention_backend", False) or getattr(
        model, "_is_stateful", False
    ):
        return ""
    return (
        "; its layers have an attention of their own, which does not go through transformers' "
        "AttentionInterface (_supports_attention_backend)"
    )
