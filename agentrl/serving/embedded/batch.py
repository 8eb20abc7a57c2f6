"""Continuous batching: which requests have a row of the cache, and their next tokens.

Belongs to one thread at a time. A request waits until a row is free, its prompt is computed (only
what no row holds yet, identical prompts once), and then it gets one token in each decoding step.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from agentrl.config.fleet import EmbeddedServing
from agentrl.errors import ConfigError, EngineRefused
from agentrl.machine.free_memory import available_bytes
from agentrl.serving.cache_room import TILE, cache_bytes, tiled, too_short
from agentrl.serving.embedded.cache_attention import CacheSegment
from agentrl.serving.embedded.forward import RowModel
from agentrl.serving.embedded.kv_cache import KvCache
from agentrl.serving.embedded.request import Request, deliver
from agentrl.serving.embedded.sampling import TokenDraw, sample
from agentrl.types import FinishReason, Generation

logger = logging.getLogger(__name__)

COUNTS = ("generated_tokens", "prefill_tokens", "cached_tokens", "decode_steps", "busy_s")


@dataclass(slots=True)
class _Wave:
    """Requests that got rows in one step."""

    segments: list[CacheSegment] = field(default_factory=list)
    """Prompts, or the part of them that no row holds, to be computed."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(row, leader): rows whose prompt is that of the leader's row."""
    source: list[int] = field(default_factory=list)
    """Of each new request, in order: the segment whose last token it samples after."""


class Batch:
    """The requests that are being served, row by row, and those that wait for a row."""

    def __init__(self, model: RowModel, cache: KvCache, *, max_prefill: int, version: int) -> None:
        """Take the model and its cache.

        Args:
            model: computes rows.
            cache: one row per running request, in the same order.
            max_prefill: most prompt tokens computed at once.
            version: of the weights; set by the code that changes them.
        """
        self.model = model
        self.cache = cache
        self.version = version
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.counts: dict[str, float] = dict.fromkeys(COUNTS, 0.0)
        self._max_prefill = max_prefill

    def step(self) -> None:
        """Admit what there is room for, and compute one token of every row.

        Prompts of new rows and the next tokens of the others go through the model together.
        """
        self._drop_cancelled()
        decoding = len(self.running)
        wave = self._admit()
        if not self.running:
            return
        ids = [request.ids[-1] for request in self.running[:decoding]]
        segments = self._shorten(wave.segments)
        offsets = [request.rotary_offset for request in self.running[:decoding]]
        logits = self.model.step(self.cache, ids, segments, offsets)
        for row, token in enumerate(ids):
            self.cache.append_ids(row, (token,))
        for segment in segments:
            self.cache.append_ids(segment.row, segment.ids)
        for row, leader in wave.copies:
            self.cache.copy(leader, row, len(self.running[row].prompt))
        self.counts["decode_steps"] += bool(ids)
        self.counts["cached_tokens"] += sum(row.cached for row in self.running[decoding:])
        if wave.source:
            logits = logits[[*range(decoding), *(decoding + at for at in wave.source)]]
        self._take_tokens(logits)

    def _drop_cancelled(self) -> None:
        for row in reversed(range(len(self.running))):
            if self.running[row].cancelled:
                self._finish(row, FinishReason.ABORT)

    def _admit(self) -> _Wave:
        """Give waiting requests rows, as far as the budget of prompt tokens goes.

        Identical prompts are computed once.
        """
        wave = _Wave()
        leaders: dict[bytes, tuple[int, int]] = {}
        budget = self._max_prefill
        while self.waiting and budget > 0:
            request = self.waiting[0]
            if request.cancelled:
                self.waiting.popleft()
                continue
            if self.cache.is_active(request.session_id):
                self.waiting.popleft()
                why = f"session {request.session_id!r} has a turn in flight already"
                deliver(request, EngineRefused(why))
                continue
            row = self.cache.claim(request.session_id)
            if row is None:
                break
            # From here on the request is among those notified of a failure.
            self.running.append(self.waiting.popleft())
            if request.waits:
                request.note_wait(False)
            key = request.prompt.tobytes()
            if key in leaders:
                leader, source = leaders[key]
                wave.copies.append((row, leader))
                request.cached = len(request.prompt)
                self.cache.lengths[row] = 0
            else:
                request.cached = self.cache.adopt_prefix(row, request.prompt)
                if request.images is not None:
                    request.cached = self.cache.lengths[row] = request.images.cut(request.cached)
                ids = request.prompt[request.cached :]
                source = len(wave.segments)
                leaders[key] = (row, source)
                wave.segments.append(
                    CacheSegment(
                        row=row, start=request.cached, ids=ids.tolist(), images=request.images
                    )
                )
                budget -= len(ids)
            wave.source.append(source)
        # Those that were seen to wait before come first.
        for request in reversed(self.waiting):
            if request.waits:
                break
            request.note_wait(True)
        return wave

    def _shorten(self, segments: Sequence[CacheSegment]) -> list[CacheSegment]:
        """Compute all but the last chunk of segments that are longer than the budget."""
        last = []
        for segment in segments:
            rest = segment
            self.counts["prefill_tokens"] += len(rest.ids)
            while (length := rest.first_part(self._max_prefill)) < len(rest.ids):
                head = rest.part(0, length)
                self.model.prefill(self.cache, [head])
                self.cache.append_ids(segment.row, head.ids)
                rest = rest.part(length, len(rest.ids))
            last.append(rest)
        return last

    def _take_tokens(self, logits_NV: torch.Tensor) -> None:
        """Sample a token of every row, and retire those that are finished."""
        draws = [
            TokenDraw(
                temperature=request.sampling.temperature,
                top_p=request.sampling.top_p,
                uniform=request.random.random(),
            )
            for request in self.running
        ]
        tokens, log_probs = sample(logits_NV, draws)
        self.counts["generated_tokens"] += len(tokens)
        finished: list[tuple[int, FinishReason]] = []
        drawn = zip(self.running, tokens, log_probs, strict=True)
        for row, (request, token, log_prob) in enumerate(drawn):
            request.ids.append(token)
            request.log_probs.append(log_prob)
            request.versions.append(self.version)
            if token in request.stops:
                finished.append((row, FinishReason.STOP))
            elif len(request.ids) >= request.limit:
                finished.append((row, FinishReason.LENGTH))
        # From the back, so that a row moved forward is never one still to be retired.
        for row, reason in reversed(finished):
            self._finish(row, reason)

    def _finish(self, row: int, reason: FinishReason) -> None:
        request = self.running[row]
        self.cache.retire(row)
        last = self.running.pop()
        if last is not request:
            self.running[row] = last
        generation = Generation(
            ids=tuple(request.ids),
            log_probs=tuple(request.log_probs),
            finish_reason=reason,
            policy_versions=tuple(request.versions),
            cached_tokens=request.cached,
        )
        deliver(request, generation)


def make_cache(
    model: RowModel, section: EmbeddedServing, max_context_tokens: int, *, lanes: int = 1
) -> KvCache:
    """Rows of one of `lanes` caches, for as many sequences as `section` asks and memory holds.

    Raises:
        ConfigError: there is no room for one sequence in each.
    """
    width = torch.finfo(model.dtype).bits // 8
    row_bytes = 2 * width * model.num_layers * model.num_kv_heads * model.head_dim
    row_bytes *= tiled(max_context_tokens)
    wanted = -(-section.max_batch_size // lanes)
    room = cache_bytes(section, free=_free_bytes(model.device)) // lanes
    rows = min(wanted, room // row_bytes)
    if rows < 1:
        token = row_bytes // tiled(max_context_tokens)
        raise ConfigError(
            too_short(
                section,
                f"{model.num_layers} layers of {model.num_kv_heads} key heads of {model.head_dim}",
                tokens=max_context_tokens,
                needed=row_bytes,
                room=room,
                fits=room // token // TILE * TILE,
                token=token,
                lanes=lanes,
            )
        )
    if rows < wanted:
        logger.info("serving.kv_cache_gb holds %d sequences, not max_batch_size", rows * lanes)
    return KvCache(
        num_layers=model.num_layers,
        num_rows=rows,
        num_heads=model.num_kv_heads,
        max_tokens=max_context_tokens,
        head_dim=model.head_dim,
        dtype=model.dtype,
        device=model.device,
    )


def _free_bytes(device: torch.device) -> int:
    """Memory that is free where a model is."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return available_bytes() or 0
