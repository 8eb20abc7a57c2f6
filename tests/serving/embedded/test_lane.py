"""One lane that stops: no request that it was given is left without an answer."""

import asyncio
import random

import numpy as np
import pytest

from agentrl.config.fleet import EmbeddedServing
from agentrl.errors import EngineError
from agentrl.serving.embedded.batch import Batch, make_cache
from agentrl.serving.embedded.forward import RowModel
from agentrl.serving.embedded.lane import Lane
from agentrl.serving.embedded.request import Request
from agentrl.types import SamplingParams
from tests.serving.embedded.peaked_model import peaked_model


def make_lane() -> Lane:
    model = RowModel(peaked_model())
    cache = make_cache(model, EmbeddedServing(max_batch_size=2), 96)
    batch = Batch(model, cache, max_prefill=16, version=0)
    return Lane(batch, name="lane", cores=1, on_failure=lambda why: None)


def make_request() -> Request:
    loop = asyncio.get_running_loop()
    return Request(
        prompt=np.array([1, 2, 3], dtype=np.int32),
        sampling=SamplingParams(max_tokens=90),
        session_id="s",
        limit=90,
        loop=loop,
        future=loop.create_future(),
        random=random.Random(0),
        stops=frozenset(),
    )


async def test_a_request_that_comes_as_the_lane_stops_is_failed() -> None:
    """Fails (by hanging) if it is put where no thread looks any more."""
    lane, request = make_lane(), make_request()
    lane.stop_for("another lane failed")
    lane.submit(request)
    with pytest.raises(EngineError, match="another lane"):
        await asyncio.wait_for(request.future, timeout=120)
    await lane.close()


async def test_a_request_that_is_being_moved_as_the_lane_stops_is_failed() -> None:
    """Fails (by hanging) if only what lies in a list at that moment is failed."""
    lane, request = make_lane(), make_request()

    class Stopping(list[Request]):
        def append(self, item: Request) -> None:
            lane.stop_for("another lane failed")
            super().append(item)

    lane.batch.running = Stopping()
    lane.submit(request)
    with pytest.raises(EngineError, match="another lane"):
        await asyncio.wait_for(request.future, timeout=120)
    await lane.close()
