"""Dropout of what goes into adapters, as peft has it, for a policy that stays honest.

    y = W x + s B A (mask * x) / (1 - p)      where a gradient is formed
    y = W x + s B A x                         everywhere else

The sampler, the old policy, the reference and the proof know no masks, so a log-probability under a
mask in the place of the policy's would put the noise of the mask into every ratio: at the first
update of a step, where the ratio is 1, tokens would be clipped. So a pass with a gradient has two
forwards. The numbers of the loss (ratios, clips, penalties, metrics) are those of the policy
without masks; only the way back goes through the masks:

    lp = lp_plain + (lp_masked - stop_gradient(lp_masked))

For a loss that is linear in `lp`, as cross entropy and the first update of a policy gradient, that
is the gradient of usual dropout. TRL and peft have masks in the numerator of the ratio and, where
it recomputes them, in the denominator too, other ones; verl has no dropout.

A mask follows from the tokens of the micro-batch and the adapters themselves: a resumed run and a
recomputed layer draw the same one without a generator that has to be kept, and after an update it
is another. Other micro-batches (their size, lanes, ranks) have other masks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from agentrl.batch.tensors import TensorBatch
from agentrl.train.model.logprobs import LossOf, TokenLogProbs

LogProbsOf = Callable[[LossOf | None], TokenLogProbs]
"""A pass of a model over one batch, given its loss."""


class SeededDropout(nn.Module):
    """Drops inputs where a gradient is formed, by a mask that `seed` decides."""

    def __init__(self, rate: float, index: int) -> None:
        super().__init__()
        self.rate, self.index, self.seed = rate, index, 0

    def forward(self, x: Tensor) -> Tensor:
        """The inputs that are left, scaled by 1 / (1 - rate); all of them without a gradient."""
        if not torch.is_grad_enabled():
            return x
        generator = None  # without memory, as preflight counts a pass, there is nothing to draw
        if not x.is_meta:
            generator = torch.Generator(x.device).manual_seed((self.seed + self.index) % 2**63)
        kept = torch.empty_like(x).bernoulli_(1.0 - self.rate, generator=generator)
        return x * kept.div_(1.0 - self.rate)


def draw_masks(model: nn.Module, batch: TensorBatch) -> bool:
    """Choose the masks of the next pass over `batch`; false for a model that drops nothing."""
    drops = [module for module in model.modules() if isinstance(module, SeededDropout)]
    if not drops:
        return False
    ups = [param for name, param in model.named_parameters() if ".lora_B." in name]
    sums = torch.stack([up.detach().sum(dtype=torch.float64) for up in ups])
    digest = xxhash.xxh64(batch.input_ids_T.cpu().numpy().tobytes())
    digest.update(sums.cpu().numpy().tobytes())
    for module in drops:
        module.seed = digest.intdigest()
    return True


def masked_log_probs(run: LogProbsOf, loss_of: LossOf | None) -> TokenLogProbs:
    """Numbers without masks, with a gradient that goes through them; `draw_masks` came before."""
    with torch.no_grad():
        plain = run(None)

    def valued(masked: TokenLogProbs) -> TokenLogProbs:
        top = plain.top_log_probs_RK
        if top is not None and masked.top_log_probs_RK is not None:
            top = at_value(top, masked.top_log_probs_RK)
        return replace(
            plain,
            log_probs_R=at_value(plain.log_probs_R, masked.log_probs_R),
            entropy_R=at_value(plain.entropy_R, masked.entropy_R),
            top_log_probs_RK=top,
        )

    return valued(run(None if loss_of is None else lambda masked: loss_of(valued(masked))))


def masked_values(run: Callable[[], Tensor]) -> Tensor:
    """As `masked_log_probs`, of one tensor."""
    with torch.no_grad():
        plain = run()
    return at_value(plain, run())


def at_value(plain: Tensor, masked: Tensor) -> Tensor:
    """The numbers of the one with the gradient of the other."""
    return plain + (masked - masked.detach()) if masked.requires_grad else plain


def put_dropout(layers: list[Any], name: str, rate: float) -> None:
    """Replace what peft drops by in adapted layers, for the adapter of this name."""
    for index, layer in enumerate(layers):
        layer.lora_dropout[name] = SeededDropout(rate, index)
