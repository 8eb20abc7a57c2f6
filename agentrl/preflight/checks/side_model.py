"""The check of the served model that answers side calls of agents: its answer and its price."""

from __future__ import annotations

from agentrl.config.schema import RolloutSection
from agentrl.errors import ServedModelError
from agentrl.served import ServedModel, read_settings
from agentrl.tool import FunctionTool
from agentrl.types import Message
from agentrl.types.finding import Finding, fail, warn

NAME = "side model"
_WHERE = "rollout.side_calls"
_MOST_TOKENS = 64
_ASKED = (Message(role="user", content="Answer with one word: ready."),)


async def side_model(section: RolloutSection) -> Finding | str:
    """Ask it for a turn, with and without tools: a failure ends a rollout as `env_crashed`."""
    settings = read_settings(section.side_calls, _WHERE)
    model = ServedModel(settings, where=_WHERE)
    try:
        said = await model.turn(_ASKED, max_tokens=_MOST_TOKENS)
    except ServedModelError as error:
        return fail(NAME, str(error), f"see that the server answers, and mend {_WHERE}")
    text = (
        f"{settings.model} answers ({said.prompt_tokens} tokens read, {said.sampled_tokens} "
        f"written), {settings.price_in:g} and {settings.price_out:g} a million"
    )
    try:
        await model.turn(_ASKED, tools=[FunctionTool(_look).schema()], max_tokens=_MOST_TOKENS)
    except ServedModelError as error:
        return warn(
            NAME,
            f"{text}; it refuses tools, so a sub-agent ends its rollout: {error}",
            "let its server parse tool calls, or set side_calls: context",
        )
    if settings.api_key_env and not settings.price_in and not settings.price_out:
        return warn(
            NAME,
            f"{text}: it has a key and no price, so served/cost stays 0",
            f"set price_in and price_out of {_WHERE}",
        )
    return text


async def _look(name: str) -> str:
    """Look something up.

    Args:
        name: of the thing
    """
    return name
