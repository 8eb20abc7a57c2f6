"""An inference engine inside the training process.

Requests come in on the event loop and are served by lanes: threads with a batch each, which share
nothing but the weights. Weights are the trainer's own, not copied: the code that changes them
pauses the engine first.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from agentrl.config.fleet import EmbeddedServing
from agentrl.engine import TURN_CLOCK, Engine, EngineHealth, WeightTicket, refuse_images
from agentrl.errors import ConfigError, EngineError, EngineRefused
from agentrl.machine.compute_threads import run_computing, usable_cores
from agentrl.models.proof import ModelProof
from agentrl.models.vision.reader import reader_of
from agentrl.serving.embedded.batch import Batch, make_cache
from agentrl.serving.embedded.lane import Lane
from agentrl.serving.embedded.pictures import ImageNumbers
from agentrl.serving.embedded.proof import open_rows, prove_decoding
from agentrl.serving.embedded.request import Request
from agentrl.types import Generation, ImageSpan, SamplingParams

PREFILL_TOKENS = 4096
"""Prompt tokens computed in one forward pass."""
FULL_LANE = 16
"""Sequences a lane should have: with fewer, reading the weights takes longer than the products."""
SIBLINGS = 8
"""Sequences a lane may have more than another and still get those whose prompt it holds."""


class EmbeddedEngine(Engine):
    """Continuous batching over a `transformers` model in this process."""

    reports_cached = True

    def __init__(
        self,
        model: Any,
        *,
        section: EmbeddedServing,
        max_context_tokens: int,
        version: int = 0,
        name: str = "embedded-0",
        receive: Callable[[WeightTicket], Iterable[tuple[str, Any]]] | None = None,
        lanes: int | None = None,
        max_prefill: int = PREFILL_TOKENS,
    ) -> None:
        """Allocate the caches and start the threads.

        Args:
            model: a causal language model of `transformers`; used where it is, never copied.
            section: batch and memory bounds.
            max_context_tokens: prompt plus response of any request.
            version: of the weights as they are now.
            name: for the balancer.
            receive: fetches the weights of a ticket; None for an engine that samples from the
                trainer's own parameters, where only the version moves.
            lanes: threads that decode a share of the sequences each; None is one for each core, as
                long as each has `FULL_LANE` sequences.
            max_prefill: prompt tokens computed in one pass.

        Raises:
            ConfigError: the model cannot hold such a context, it is not decoded as its own forward
                pass reads it, or the cache has no room for one sequence.
        """
        self.name = name
        self._model = open_rows(model)
        self.proof = prove_decoding(self._model)
        """Comparison of what it decodes with the model's own forward pass."""
        self._receive = receive
        reader = reader_of(model)
        self._images = None if reader is None else ImageNumbers(reader)
        positions = getattr(self._model.config, "max_position_embeddings", None)
        if positions is not None and max_context_tokens > positions:
            raise ConfigError(
                f"rollout.max_context_tokens is {max_context_tokens}, but the model was made for "
                f"{positions} positions"
            )
        self._max_context = max_context_tokens
        cores = usable_cores() if self._model.device.type == "cpu" else 1
        count = lanes or default_lanes(cores, section.max_batch_size)
        self._failure = ""
        self._closing = False
        self._lanes = [
            Lane(
                Batch(
                    self._model,
                    make_cache(self._model, section, max_context_tokens, lanes=count),
                    max_prefill=max_prefill,
                    version=version,
                ),
                name=f"{name}-lane-{index}",
                cores=max(1, cores // count),
                on_failure=self._fail,
            )
            for index in range(count)
        ]
        self._lane_of: dict[str, Lane] = {}

    def prove_again(self) -> ModelProof:
        """Compare what it decodes with the model's own forward pass, before it serves a request.

        Raises:
            ConfigError: as when it was opened.
        """
        self.proof = prove_decoding(self._model)
        return self.proof

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session_id: str,
        images: Sequence[ImageSpan] = (),
    ) -> Generation:
        """Sample one turn; see `agentrl.engine.Generator.generate`."""
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
        seen = None
        if self._images is not None:
            seen = self._images.read(prompt, images, session_id)
            prompt = seen.keys
        else:
            refuse_images(self.name, images)
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
            clock=TURN_CLOCK.get(),
            images=seen,
        )
        if self._closing or self._failure:
            raise EngineRefused(self._failure or f"engine {self.name} is closed")
        key = prompt.tobytes()
        lane = self._lane_of.get(session_id) or choose_lane(self._lanes, key)
        self._lane_of[session_id] = lane
        lane.prompts[key] += 1
        lane.submit(request)
        try:
            return await request.future
        except asyncio.CancelledError:
            request.cancelled = True
            raise
        finally:
            request.end()
            lane.prompts[key] -= 1
            if not lane.prompts[key]:
                del lane.prompts[key]

    async def end_session(self, session_id: str) -> None:
        """The session's cache row may be reused."""
        lane = self._lane_of.pop(session_id, None)
        if lane is not None:
            lane.end_session(session_id)

    async def pause(self) -> None:
        """Stop after the token being decoded; requests keep their cache row.

        The threads end, so that all cores are free for the trainer.
        """
        await asyncio.gather(*(lane.pause() for lane in self._lanes))

    async def resume(self) -> None:
        """Go on decoding after a pause."""
        await asyncio.gather(*(lane.resume() for lane in self._lanes))

    async def load_weights(self, ticket: WeightTicket) -> None:
        """Take the weights of a ticket; see `agentrl.engine.Engine.load_weights`.

        Idle rows are forgotten. A request in flight keeps its cached past and goes on with the
        new weights; its tokens say which version sampled them.

        Raises:
            EngineError: not paused, an older version, or a tensor that does not fit.
        """
        if not all(lane.is_paused for lane in self._lanes):
            raise EngineError(f"engine {self.name}: pause before load_weights")
        if ticket.version <= self.version:
            raise EngineError(
                f"engine {self.name}: version {ticket.version} is not newer than {self.version}"
            )
        if self._receive is not None:
            await run_computing(self._copy, self._receive(ticket))
        elif ticket.backend != "inprocess":
            raise EngineError(
                f"engine {self.name} shares the trainer's weights and receives none; got a ticket "
                f"of backend {ticket.backend!r}, expected 'inprocess'"
            )
        for lane in self._lanes:
            lane.batch.cache.drop_idle()
            lane.batch.version = ticket.version

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
        """Version of the weights; see `agentrl.engine.Engine.version`."""
        return self._lanes[0].batch.version

    async def health(self) -> EngineHealth:
        """Counters since the start: tokens generated, computed and found in the cache."""
        counts: Counter[str] = Counter()
        for lane in self._lanes:
            counts.update(lane.batch.counts)
        return EngineHealth(
            ready=not self._failure and not self._closing,
            version=self.version,
            in_flight=sum(lane.load for lane in self._lanes),
            detail=self._failure,
            metrics=dict(counts),
        )

    async def close(self) -> None:
        """Stop the threads; what is in flight fails."""
        self._closing = True
        await asyncio.gather(*(lane.close() for lane in self._lanes))
        self._fail_all(f"engine {self.name} was closed")

    def _fail(self, why: str) -> None:
        self._fail_all(f"engine {self.name} failed: {why}")

    def _fail_all(self, why: str) -> None:
        self._failure = self._failure or why
        for lane in self._lanes:
            lane.stop_for(why)


def default_lanes(cores: int, max_batch_size: int) -> int:
    """One lane a core, as long as each has `FULL_LANE` sequences when the engine is full."""
    return max(1, min(cores, max_batch_size // FULL_LANE))


def choose_lane(lanes: Sequence[Lane], prompt: bytes) -> Lane:
    """The lane of a new session: that of its siblings, else the one with least in flight.

    A lane that computes the same prompt holds it already. It is left for another one once it has
    `SIBLINGS` more in flight: waiting there would cost more than computing the prompt again.
    """
    idlest = min(lanes, key=lambda lane: lane.load)
    holding = [
        lane for lane in lanes if lane.prompts[prompt] and lane.load < idlest.load + SIBLINGS
    ]
    return min(holding, key=lambda lane: lane.load, default=idlest)
