"""Continuous batching: which requests have a row of the cache, and their next tokens.

Belongs to one thread at a time. A request waits until a row is free, its prompt is computed (only
what no row holds yet, identical prompts once), and then it gets one token in each decoding step.
"""

from __future__ import annotations

import logging
from collections import deque

import torch

from agentrl.config.fleet import EmbeddedServing
from agentrl.errors import ConfigError, EngineRefused
from agentrl.serving.embedded.forward import CacheSegment, RowModel
from agentrl.serving.embedded.kv_cache import KvCache
from agentrl.serving.embedded.request import Request, deliver
from agentrl.serving.embedded.sampling import TokenDraw, sample
from agentrl.types import FinishReason, Generation

logger = logging.getLogger(__name__)

COUNTS = ("generated_tokens", "prefill_tokens", "cached_tokens", "decode_steps", "busy_s")


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
        """Admit what there is room for, and decode one token of every row."""
        self._drop_cancelled()
        self._admit()
        if self.running:
            self._decode()

    def _drop_cancelled(self) -> None:
        for row in reversed(range(len(self.running))):
            if self.running[row].cancelled:
                self._finish(row, FinishReason.ABORT)

    def _admit(self) -> None:
        """Give waiting requests rows and compute their prompts, identical prompts once."""
        while self.waiting:
            first = len(self.running)
            segments: list[CacheSegment] = []
            leaders: dict[bytes, tuple[int, int]] = {}
            copies: list[tuple[int, int]] = []
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
                key = request.prompt.tobytes()
                if key in leaders:
                    copies.append((row, leaders[key][0]))
                    request.cached = len(request.prompt)
                    self.cache.lengths[row] = 0
                else:
                    request.cached = self.cache.adopt_prefix(row, request.prompt)
                    ids = request.prompt[request.cached :]
                    leaders[key] = (row, len(segments))
                    segments.append(CacheSegment(row=row, start=request.cached, ids=ids.tolist()))
                    budget -= len(ids)
            if len(self.running) == first:
                return
            self._start(first, segments, leaders, copies)

    def _start(
        self,
        first: int,
        segments: list[CacheSegment],
        leaders: dict[bytes, tuple[int, int]],
        copies: list[tuple[int, int]],
    ) -> None:
        """Compute the prompts of the requests from row `first` on, and sample their first token."""
        logits = self._prefill(segments)
        for row, leader in copies:
            self.cache.copy(leader, row, len(self.running[row].prompt))
        wave = self.running[first:]
        order = [leaders[request.prompt.tobytes()][1] for request in wave]
        self.counts["cached_tokens"] += sum(request.cached for request in wave)
        self._take_tokens(list(range(first, first + len(wave))), logits[order])

    def _prefill(self, segments: list[CacheSegment]) -> torch.Tensor:
        """Logits after each segment; a segment longer than the budget goes in chunks."""
        for index, segment in enumerate(segments):
            start, ids = segment.start, segment.ids
            while len(ids) > self._max_prefill:
                head = CacheSegment(row=segment.row, start=start, ids=ids[: self._max_prefill])
                self.model.prefill(self.cache, [head])
                self.cache.append_ids(segment.row, head.ids)
                start, ids = start + len(head.ids), ids[self._max_prefill :]
            segments[index] = CacheSegment(row=segment.row, start=start, ids=ids)
            self.counts["prefill_tokens"] += len(segment.ids)
        logits = self.model.prefill(self.cache, segments)
        for segment in segments:
            self.cache.append_ids(segment.row, segment.ids)
        return logits

    def _decode(self) -> None:
        ids = [request.ids[-1] for request in self.running]
        logits = self.model.decode(self.cache, ids)
        for row, token in enumerate(ids):
            self.cache.append_ids(row, (token,))
        self.counts["decode_steps"] += 1
        self._take_tokens(list(range(len(self.running))), logits)

    def _take_tokens(self, rows: list[int], logits: torch.Tensor) -> None:
        """Sample for `rows`, and retire those that are finished."""
        requests = [self.running[row] for row in rows]
        draws = [
            TokenDraw(
                temperature=request.sampling.temperature,
                top_p=request.sampling.top_p,
                uniform=request.random.random(),
            )
            for request in requests
        ]
        tokens, log_probs = sample(logits, draws)
        self.counts["generated_tokens"] += len(tokens)
        finished: list[tuple[int, FinishReason]] = []
        for row, request, token, log_prob in zip(rows, requests, tokens, log_probs, strict=True):
            request.ids.append(token)
            request.log_probs.append(log_prob)
            request.versions.append(self.version)
            if token in request.stops:
                finished.append((row, FinishReason.STOP))
            elif len(request.ids) >= request.limit:
                finished.append((row, FinishReason.LENGTH))
        # From the back, so that a row moved forward is never one still to be retired.
        for row, reason in sorted(finished, reverse=True):
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


def make_cache(model: RowModel, section: EmbeddedServing, max_context_tokens: int) -> KvCache:
    """Rows for as many sequences as `section` asks for and memory holds.

    Raises:
        ConfigError: there is no room for one.
    """
    width = torch.finfo(model.dtype).bits // 8
    row_bytes = 2 * width * model.num_layers * model.num_kv_heads * model.head_dim
    row_bytes *= max_context_tokens
    rows = min(section.max_batch_size, int(section.kv_cache_gb * 2**30 / row_bytes))
    if rows < 1:
        raise ConfigError(
            f"serving.kv_cache_gb is {section.kv_cache_gb}, but one sequence of "
            f"{max_context_tokens} tokens needs {row_bytes / 2**30:.2f} GiB; raise it or lower "
            "rollout.max_context_tokens"
        )
    if rows < section.max_batch_size:
        logger.info("serving.kv_cache_gb holds %d sequences, not max_batch_size", rows)
    return KvCache(
        num_layers=model.num_layers,
        num_rows=rows,
        num_heads=model.num_kv_heads,
        max_tokens=max_context_tokens,
        head_dim=model.head_dim,
        dtype=model.dtype,
        device=model.device,
    )
