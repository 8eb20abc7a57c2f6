"""The language-model head: log-probabilities, entropy and gradients against float64, and memory.

"kept" keeps the softmax for the backward pass, "chunks" computes it again chunk by chunk, "formed"
forms the gradient in the forward pass; "float32" is "kept" with logits that are never rounded to
the dtype of the weights. "naive" is torch's `log_softmax` over all logits in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.train.model import head_logprobs
from agentrl.train.model.head_logprobs import head_log_probs
from parts.readings import Reading, Setting, peak_bytes, relative_error, seconds_of


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadInputs:
    """Inputs of the head, and the gradient of the loss in the log-probabilities."""

    hidden: Tensor
    """[A, E] Hidden states."""
    weight: Tensor
    """[V, E] Weight of the head."""
    target: Tensor
    """[A] Ids."""
    upstream: Tensor
    """[A] Gradient of the loss in each log-probability, float32."""

    def to(self, device: torch.device, dtype: torch.dtype) -> HeadInputs:
        """Fresh leaves in a dtype on a device; ids and upstream keep their dtype."""
        return HeadInputs(
            hidden=self.hidden.detach().to(device, dtype).requires_grad_(),
            weight=self.weight.detach().to(device, dtype).requires_grad_(),
            target=self.target.to(device),
            upstream=self.upstream.to(device),
        )


Head = Callable[[HeadInputs], tuple[Tensor, Tensor | None]]


def naive(given: HeadInputs) -> tuple[Tensor, None]:
    """Log-probabilities through all logits, in float32 at least; no entropy."""
    wide = torch.promote_types(given.hidden.dtype, torch.float32)
    logits = (given.hidden @ given.weight.t()).to(wide)
    return torch.log_softmax(logits, -1).gather(1, given.target[:, None])[:, 0], None


def kept(given: HeadInputs) -> tuple[Tensor, Tensor]:
    """The head with its softmax kept."""
    return head_log_probs(given.hidden, given.weight, given.target, max_kept_bytes=1 << 40)


def chunks(given: HeadInputs) -> tuple[Tensor, Tensor]:
    """The head in four chunks or more, each computed again in the backward pass."""
    size = len(given.target) * len(given.weight) * given.weight.element_size()
    return head_log_probs(given.hidden, given.weight, given.target, max_kept_bytes=size // 4)


def formed(given: HeadInputs) -> tuple[Tensor, Tensor]:
    """The head with its gradient formed in the forward pass, where logits pass `FORMED_BYTES`."""
    return head_log_probs(
        given.hidden, given.weight, given.target,
        gradient_of=lambda part, *_: given.upstream[part],
    )  # fmt: skip


def float32(given: HeadInputs) -> tuple[Tensor, Tensor]:
    """The head with logits in float32."""
    return head_log_probs(
        given.hidden, given.weight, given.target, max_kept_bytes=1 << 40, float32_logits=True
    )


HEADS: dict[str, Head] = {"kept": kept, "chunks": chunks, "formed": formed, "float32": float32}
LOGP_BOUNDS = {
    (torch.float32, False): 1e-5, (torch.float32, True): 1e-5,
    (torch.bfloat16, False): 4e-2, (torch.bfloat16, True): 1e-4,
}  # fmt: skip
"""Largest difference of a log-probability in nats, by dtype and whether logits are float32."""
GRADIENT_BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""Relative error of the gradients of hidden states and weight, by dtype."""


def head_inputs(tokens: int, vocabulary: int, width: int) -> HeadInputs:
    """Random inputs in float64 on the CPU; logits spread by about 1."""
    generator = torch.Generator().manual_seed(0)
    return HeadInputs(
        hidden=torch.randn(tokens, width, generator=generator, dtype=torch.float64),
        weight=torch.randn(vocabulary, width, generator=generator, dtype=torch.float64)
        / width**0.5,
        target=torch.randint(0, vocabulary, (tokens,), generator=generator),
        upstream=torch.randn(tokens, generator=generator),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadErrors:
    """Distance of a head from float64 on the CPU, on the same rounded inputs."""

    log_prob: float
    """Largest difference of a log-probability, nats."""
    entropy: float
    """Largest difference of an entropy, nats."""
    gradient: float
    """Relative error of the gradients, the larger of hidden states and weight."""


def head_errors(
    head: Head, given: HeadInputs, dtype: torch.dtype, device: torch.device
) -> HeadErrors:
    """Compare a head on a device with float64 on the CPU."""
    cpu = torch.device("cpu")
    exact = given.to(cpu, dtype).to(cpu, torch.float64)
    logits = exact.hidden @ exact.weight.t()
    log_probs = torch.log_softmax(logits, -1)
    wanted = log_probs.gather(1, exact.target[:, None])[:, 0]
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    wanted.backward(exact.upstream.double())
    mine = given.to(device, dtype)
    found, found_entropy = head(mine)
    found.backward(mine.upstream.to(found.dtype))
    assert found_entropy is not None
    gradients = [(mine.hidden.grad, exact.hidden.grad), (mine.weight.grad, exact.weight.grad)]
    return HeadErrors(
        log_prob=float((found.detach().cpu().double() - wanted.detach()).abs().max()),
        entropy=float((found_entropy.cpu().double() - entropy.detach()).abs().max()),
        gradient=max(relative_error(a, b) for a, b in gradients if a is not None and b is not None),
    )


def measure(setting: Setting) -> Iterator[Reading]:
    """Errors by head and dtype, then time and peak memory."""
    tokens, vocabulary, width = (96, 4096, 64) if setting.small else (1536, 49152, 576)
    given = head_inputs(tokens, vocabulary, width)
    for dtype, bound in GRADIENT_BOUNDS.items():
        for name, head in HEADS.items():
            errors = head_errors(head, given, dtype, setting.device)
            label = f"{name}, {str(dtype).removeprefix('torch.')}"
            logp = LOGP_BOUNDS[dtype, name == "float32"]
            yield from (
                Reading(name=f"{label}: log-probability", value=errors.log_prob, bound=logp,
                        unit="nats"),
                Reading(name=f"{label}: entropy", value=errors.entropy, bound=logp, unit="nats"),
                Reading(name=f"{label}: gradient, error", value=errors.gradient, bound=bound),
            )  # fmt: skip
    yield from _costs(setting)


def _costs(setting: Setting) -> Iterator[Reading]:
    sizes = [(96, 4096, 64)] if setting.small else [(16384, 49152, 576), (8192, 151936, 1024)]
    for tokens, vocabulary, width in sizes:
        given = head_inputs(tokens, vocabulary, width).to(setting.device, torch.bfloat16)
        for name, head in {"naive": naive, **HEADS}.items():

            def both(head: Head = head, given: HeadInputs = given) -> None:
                given.hidden.grad = given.weight.grad = None
                head(given)[0].backward(given.upstream)

            label = f"{name}, {tokens} tokens, vocabulary {vocabulary}, bfloat16"
            seconds = seconds_of(both, setting.device, repeats=1 if setting.small else 5)
            yield Reading(name=label, value=seconds * 1e3, unit="ms")
            if setting.on_gpu:
                peak = peak_bytes(both, setting.device) / 2**20
                yield Reading(name=label, value=peak, unit="MiB at the peak")
    limit = head_logprobs.FORMED_BYTES / 2**20
    yield Reading(name="logits of a chunk of `formed`", value=limit, unit="MiB")
