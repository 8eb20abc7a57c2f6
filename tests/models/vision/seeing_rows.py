"""Rollouts with images as a trainer gets them, without an engine, and an exact float64 model."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen2_vl import modeling_qwen2_vl
from transformers.models.qwen2_vl.modeling_qwen2_vl import rotate_half

from agentrl.chat import build_chat
from agentrl.config.schema import ChatSection
from agentrl.images import message
from agentrl.train.prove.model import TrueRMSNorm
from agentrl.types import ImageSpan, Termination, Trajectory, TrajectoryGroup
from tests.chat.chat_models import seeing_tokenizer
from tests.models.vision.tiny_seeing import picture, reader_for, seeing_model

WORDS = tuple(range(20, 60))
"""Ids of ordinary tokens."""


def seeing_groups(name: str, folder: Path) -> list[TrajectoryGroup]:
    """A group whose prompt shows two images, one of text alone, and one that is shown images later.

    The files of the images are in `folder` afterwards.
    """
    chat = build_chat(seeing_tokenizer(name), ChatSection(), images=reader_for(name, folder))

    def shown(*parts: Any) -> tuple[tuple[int, ...], tuple[ImageSpan, ...]]:
        if name == "llava_onevision":
            parts = tuple(sorted(parts, key=lambda part: isinstance(part, str)))
        messages = [message("user", parts)]
        ids = chat.render_prompt(messages)
        return tuple(ids), tuple(chat.image_spans(ids, messages))

    rng = random.Random(0)
    both = shown("Look: ", picture(1), " and ", picture(3, width=90, height=90), "?")
    text = shown("Nothing to see.")
    later = [shown("Now ", picture(seed, width=40, height=70)) for seed in (4, 5)]
    return [
        _group(rng, "both", [both, both], [None, None]),
        _group(rng, "text", [text, text, text], [None, None, None]),
        _group(rng, "later", [text, text], later),
    ]


def _group(
    rng: random.Random, group: str, prompts: Sequence[Any], feedback: Sequence[Any]
) -> TrajectoryGroup:
    rows = []
    for index, ((prompt, images), shown) in enumerate(zip(prompts, feedback, strict=True)):
        first, second = ([rng.choice(WORDS) for _ in range(rng.randint(2, 4))] for _ in range(2))
        between, spans = shown or ((), ())
        start = len(prompt) + len(first)
        moved = [_moved(span, start) for span in spans]
        mask = [1] * len(first) + [0] * len(between) + [1] * len(second)
        rows.append(
            Trajectory(
                task_id=group,
                group_id=group,
                rollout_id=f"{group}/{index}",
                prompt_ids=prompt,
                response_ids=(*first, *between, *second),
                response_mask=tuple(mask),
                rollout_log_probs=tuple(-rng.uniform(1.0, 4.0) if m else 0.0 for m in mask),
                policy_versions=tuple(0 if m else -1 for m in mask),
                reward=float(index + 1) * rng.uniform(0.5, 1.0),
                termination=Termination.ENV_DONE,
                images=(*images, *moved),
            )
        )
    return TrajectoryGroup(group_id=group, task_id=group, trajectories=tuple(rows))


def _moved(span: ImageSpan, start: int) -> ImageSpan:
    return ImageSpan(
        digest=span.digest, start=span.start + start, tokens=span.tokens, grid=span.grid
    )


def exact_seeing_model(folder: Path, *, name: str = "qwen2_vl") -> Any:
    """A float64 model whose norms are float64, too; run it inside `exact_rotation`."""
    model = seeing_model(name, folder, dtype=torch.float64)
    for module in list(model.modules()):
        for child_name, child in list(module.named_children()):
            kind = type(child).__name__
            if kind in ("Qwen2VLRMSNorm", "Qwen2RMSNorm"):
                exact = TrueRMSNorm(child.weight, child.variance_epsilon)
            elif kind == "Gemma3RMSNorm":
                # Its weight is what is added to 1.
                exact = TrueRMSNorm(torch.nn.Parameter(child.weight.detach() + 1), child.eps)
            else:
                continue
            setattr(module, child_name, exact)
    return model


@contextmanager
def exact_rotation() -> Iterator[None]:
    """Inside, the rotary embedding of Qwen2-VL's tower does not round to float32."""
    before = modeling_qwen2_vl.apply_rotary_pos_emb_vision
    modeling_qwen2_vl.apply_rotary_pos_emb_vision = _rotated
    try:
        yield
    finally:
        modeling_qwen2_vl.apply_rotary_pos_emb_vision = before


def _rotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
