"""Which lane serves a session, and what one lane's failure means for the others."""

import asyncio

import pytest
import torch
from transformers import LlamaForCausalLM

from agentrl.config.fleet import EmbeddedServing
from agentrl.errors import EngineError
from agentrl.serving.embedded import EmbeddedEngine
from agentrl.serving.embedded.engine import SIBLINGS, default_lanes
from agentrl.types import SamplingParams
from tests.serving.embedded.peaked_model import peaked_model

POISON = 60
"""A token that the broken model fails on."""


def make_engine(*, lanes: int, model: LlamaForCausalLM | None = None) -> EmbeddedEngine:
    return EmbeddedEngine(
        model or peaked_model(),
        section=EmbeddedServing(max_batch_size=32),
        lanes=lanes,
        max_context_tokens=96,
    )


async def chats(engine: EmbeddedEngine, *, groups: int, siblings: int) -> list[tuple[int, ...]]:
    """Two turns of every sibling of every group, all at once; the tokens of all of them."""

    async def chat(group: int, sibling: int) -> tuple[int, ...]:
        name, ids = f"{group}-{sibling}", [group + 1] * (12 + group)
        for turn in range(2):
            sampling = SamplingParams(max_tokens=4 + sibling, seed=100 * group + sibling + turn)
            got = await engine.generate(ids, sampling, name)
            ids = [*ids, *got.ids, turn + 1]
        await engine.end_session(name)
        return tuple(ids)

    return await asyncio.gather(*(chat(g, s) for g in range(groups) for s in range(siblings)))


async def test_the_number_of_lanes_does_not_change_the_tokens() -> None:
    """Fails if prompts beside decoded tokens, rows of lanes or their seeds are mixed up."""
    seen = []
    for lanes in (1, 2, 4):
        engine = make_engine(lanes=lanes)
        seen.append(await chats(engine, groups=5, siblings=4))
        assert (await engine.health()).in_flight == 0
        await engine.close()
    assert seen[0] == seen[1] == seen[2]


async def test_siblings_share_a_lane_and_later_turns_find_their_past() -> None:
    engine = make_engine(lanes=2)
    await chats(engine, groups=4, siblings=4)
    metrics = (await engine.health()).metrics or {}
    prompts = sum(12 + group for group in range(4))
    # Of a later turn the last sampled token and the one behind it; and a sibling that comes a
    # moment after the others computes the last token of its prompt.
    assert prompts + 16 * 2 <= metrics["prefill_tokens"] <= prompts + 16 * 2 + 12
    await engine.close()


async def test_a_group_larger_than_a_lane_should_wait_for_is_divided() -> None:
    """Fails if one lane decodes a whole group of 32 while the other has nothing to do."""
    engine = make_engine(lanes=2)
    sampling = SamplingParams(max_tokens=3, seed=0)
    await asyncio.gather(*(engine.generate([1] * 20, sampling, f"s{i}") for i in range(32)))
    metrics = (await engine.health()).metrics or {}
    assert 2 * 20 <= metrics["prefill_tokens"] <= 2 * 20 + 30
    assert SIBLINGS < 16
    await engine.close()


async def test_what_ends_one_lane_ends_the_engine() -> None:
    """Fails (by hanging) if a request in a lane that is well is forgotten."""

    def fail(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if bool((inputs[0] == POISON).any()):
            raise MemoryError("no room for activations")

    model = peaked_model()
    engine = make_engine(lanes=2, model=model)
    model.get_input_embeddings().register_forward_pre_hook(fail)
    turns = [
        engine.generate([1], SamplingParams(max_tokens=90, seed=0), "well"),
        engine.generate([2, POISON], SamplingParams(max_tokens=4), "poison"),
    ]
    ended = await asyncio.wait_for(asyncio.gather(*turns, return_exceptions=True), timeout=120)
    assert [type(end) for end in ended] == [EngineError, EngineError]
    assert "no room" in (await engine.health()).detail
    with pytest.raises(EngineError, match="failed"):
        await engine.generate([3], SamplingParams(max_tokens=1), "late")
    await engine.close()


@pytest.mark.parametrize(
    ("cores", "rows", "lanes"), [(1, 64, 1), (2, 64, 2), (2, 16, 1), (16, 64, 4), (4, 8, 1)]
)
def test_lanes_are_as_many_as_can_be_filled(cores: int, rows: int, lanes: int) -> None:
    assert default_lanes(cores, rows) == lanes
