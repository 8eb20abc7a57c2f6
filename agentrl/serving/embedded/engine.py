"""An inference engine inside the training process.

Requests come in on the event loop and are served by one thread, which owns the batch. Weights are
shared with the trainer, not copied: the code that changes them pauses the engine first.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from agentrl.config.fleet import EmbeddedServing
from agentrl.engine import Engine, EngineHealth, WeightTicket
from agentrl.errors import ConfigError, EngineError, EngineRefused
from agentrl.serving.embedded.batch import Batch, make_cache
from agentrl.serving.embedded.forward import RowModel
from agentrl.serving.embedded.request import Request, deliver
from agentrl.serving.threads import compute_thread, run_computing
from agentrl.types import Generation, SamplingParams

logger = logging.getLogger(__name__)


class EmbeddedEngine(Engine):
    """Continuous batching over a `transformers` model in this process."""

    def __init__(
        self,
        model: Any,
        *,
        section: EmbeddedServing,
        max_context_tokens: int,
        version: int = 0,
        name: str = "embedded-0",
        receive: Callable[[WeightTicket], Iterable[tuple[str, Any]]] | None = None,
    ) -> None:
        """Allocate the cache and start the thread.

        Args:
            model: a causal language model of `transformers`; used where it is, never copied.
            section: batch and memory bounds.
            max_context_tokens: prompt plus response of any request.
            version: of the weights as they are now.
            name: for the balancer.
            receive: fetches the weights of a ticket; None for an engine that samples from the
                trainer's own parameters, where only the version moves.

        Raises:
            ConfigError: the model cannot hold such a context, its architecture is not supported,
                or the cache has no room for one sequence.
        """
        self.name = name
        self._model = RowModel(model)
        self._receive = receive
        positions = getattr(model.config, "max_position_embeddings", None)
        if positions is not None and max_context_tokens > positions:
            raise ConfigError(
                f"rollout.max_context_tokens is {max_context_tokens}, but the model was made for "
                f"{positions} positions"
            )
        self._max_context = max_context_tokens
        self._batch = Batch(
            self._model,
            make_cache(self._model, section, max_context_tokens),
            max_prefill=section.max_prefill_tokens,
            version=version,
        )
        # Guards the fields below, which both threads touch; all else belongs to the engine thread.
        self._changed = threading.Condition()
        self._inbox: deque[Request] = deque()
        self._ended: deque[str] = deque()
        self._pausing = self._closing = False
        self._stopped = True
        self._failure = ""
        # One pause or resume at a time: each waits for the thread the other may be starting.
        self._switch = asyncio.Lock()
        self._thread: threading.Thread | None = None
        self._start_thread()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session_id: str
    ) -> Generation:
        """Sample one turn, as `agentrl.engine.Generator.generate` says."""
        prompt = np.asarray(prompt_ids, dtype=np.int32)
        limit = min(sampling.max_tokens, self._max_context - len(prompt))
        if len(prompt) == 0 or limit < 1:
            raise EngineRefused(
                f"request of session {session_id!r}: {len(prompt)} prompt tokens and max_tokens "
                f"{sampling.max_tokens} do not fit a context of {self._max_context}"
            )
        if int(prompt.min()) < 0 or int(prompt.max()) >= self._model.vocab_size:
            raise EngineRefused(
                f"request of session {session_id!r}: token ids {int(prompt.min())}.."
                f"{int(prompt.max())} outside the vocabulary of {self._model.vocab_size}"
            )
        loop = asyncio.get_running_loop()
        request = Request(
            prompt=prompt,
            sampling=sampling,
            session_id=session_id,
            limit=limit,
            loop=loop,
            future=loop.create_future(),
            random=random.Random(sampling.seed),
            stops=frozenset(sampling.stop_token_ids),
        )
        with self._changed:
            if self._closing or self._failure:
                raise EngineRefused(self._failure or f"engine {self.name} is closed")
            self._inbox.append(request)
            self._changed.notify()
        try:
            return await request.future
        except asyncio.CancelledError:
            request.cancelled = True
            raise

    async def end_session(self, session_id: str) -> None:
        """The session's cache row may be reused."""
        with self._changed:
            self._ended.append(session_id)
            self._changed.notify()

    async def pause(self) -> None:
        """Stop after the token being decoded; requests keep their cache row.

        The thread ends, so that all cores are free for the trainer.
        """
        async with self._switch:
            with self._changed:
                self._pausing = True
                self._changed.notify()
            await self._thread_end()

    async def resume(self) -> None:
        """Go on decoding after a pause."""
        async with self._switch:
            with self._changed:
                self._pausing = False
                leaving = self._stopped
            if leaving:
                await self._thread_end()
                if not self._closing and not self._failure:
                    self._start_thread()

    def _start_thread(self) -> None:
        self._stopped = False
        self._thread = compute_thread(self._serve, name=self.name)
        self._thread.start()

    async def _thread_end(self) -> None:
        thread = self._thread
        while thread is not None and thread.is_alive():
            await asyncio.sleep(0.002)

    async def load_weights(self, ticket: WeightTicket) -> None:
        """Take the weights of a ticket; see `agentrl.engine.Engine.load_weights`.

        Idle rows are forgotten. A request in flight keeps its cached past and goes on with the
        new weights; its tokens say which version sampled them.

        Raises:
            EngineError: not paused, an older version, or a tensor that does not fit.
        """
        if not (self._pausing and self._stopped):
            raise EngineError(f"engine {self.name}: pause before load_weights")
        if ticket.version <= self._batch.version:
            raise EngineError(
                f"engine {self.name}: version {ticket.version} is not newer than "
                f"{self._batch.version}"
            )
        if self._receive is not None:
            await run_computing(self._copy, self._receive(ticket))
        elif ticket.backend != "inprocess":
            raise EngineError(
                f"engine {self.name} shares the trainer's weights and receives none; got a ticket "
                f"of backend {ticket.backend!r}, expected 'inprocess'"
            )
        self._batch.cache.drop_idle()
        self._batch.version = ticket.version

    def _copy(self, weights: Iterable[tuple[str, Any]]) -> None:
        state = self._model.model.state_dict()
        with torch.no_grad():
            for name, tensor in weights:
                if name not in state or state[name].shape != tensor.shape:
                    have = tuple(state[name].shape) if name in state else "no such parameter"
                    raise EngineError(
                        f"engine {self.name}: weight {name!r} has shape {tuple(tensor.shape)}, "
                        f"the model has {have}"
                    )
                state[name].copy_(tensor)

    @property
    def version(self) -> int:
        """Version of the weights, as `agentrl.engine.Engine.version` says."""
        return self._batch.version

    async def health(self) -> EngineHealth:
        """Counters since the start: tokens generated, computed and found in the cache."""
        with self._changed:
            queued = len(self._inbox)
        return EngineHealth(
            ready=not self._failure and not self._closing,
            version=self._batch.version,
            in_flight=queued + len(self._batch.waiting) + len(self._batch.running),
            detail=self._failure,
            metrics=dict(self._batch.counts),
        )

    async def close(self) -> None:
        """Stop the thread; what is in flight fails."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        await self._thread_end()
        self._fail_all(f"engine {self.name} was closed")

    def _serve(self) -> None:
        try:
            with torch.inference_mode():
                while self._take_orders():
                    started = time.perf_counter()
                    self._batch.step()
                    self._batch.counts["busy_s"] += time.perf_counter() - started
        except Exception as error:  # the thread's boundary: callers must get any failure
            logger.exception("engine %s failed", self.name)
            self._fail_all(f"engine {self.name} failed: {type(error).__name__}: {error}")
            self._stopped = True

    def _take_orders(self) -> bool:
        """Read what the event loop has left; wait while there is nothing to do.

        Returns:
            Whether to go on.
        """
        with self._changed:
            while True:
                self._batch.waiting.extend(self._inbox)
                self._inbox.clear()
                while self._ended:
                    self._batch.cache.forget_session(self._ended.popleft())
                if self._closing or self._pausing:
                    self._stopped = True
                    return False
                if self._batch.waiting or self._batch.running:
                    return True
                self._changed.wait()

    def _fail_all(self, why: str) -> None:
        with self._changed:
            self._failure = self._failure or why
            pending = [*self._inbox, *self._batch.waiting, *self._batch.running]
            self._inbox.clear()
        self._batch.waiting.clear()
        self._batch.running.clear()
        for request in pending:
            deliver(request, EngineError(why))
