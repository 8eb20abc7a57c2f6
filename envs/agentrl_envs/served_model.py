"""A language model behind any server that speaks OpenAI's chat completions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from agentrl.errors import ConfigError, EnvError

_TRIES = 3


class ServedModel:
    """Asks a served model; what it says is not the agent's doing."""

    def __init__(
        self, *, url: str, model: str, api_key_env: str = "", temperature: float = 0.0,
        seed: int = 0, timeout_s: float = 50.0, setting: str = "",
    ) -> None:  # fmt: skip
        """Say where the model is.

        Args:
            url: of the server; it ends in /v1 as a rule.
            model: its name there.
            api_key_env: environment variable that holds the key; empty for a server without keys.
            temperature: of sampling.
            seed: of sampling.
            timeout_s: of an answer, further attempts included.
            setting: where the user named the variable, for messages.

        Raises:
            ConfigError: the named variable with the key is not set.
        """
        self.url = f"{url.rstrip('/')}/chat/completions"
        self._timeout_s = timeout_s
        self._body = {"model": model, "temperature": temperature, "seed": seed % 2**31}
        self._headers: dict[str, str] = {}
        if api_key_env:
            if not os.environ.get(api_key_env):
                raise ConfigError(
                    f"{setting}: the environment variable {api_key_env!r} is not set; export it, "
                    "or leave the setting empty for a server without keys"
                )
            self._headers["Authorization"] = f"Bearer {os.environ[api_key_env]}"

    async def complete(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The model's next message.

        Raises:
            EnvError: the server did not answer, or not with text; says what it did.
        """
        failures: list[str] = []
        try:
            async with asyncio.timeout(self._timeout_s):
                for attempt in range(_TRIES):
                    if attempt:
                        await asyncio.sleep(0.5 * 2**attempt)
                    try:
                        return await self._post(messages)
                    except (aiohttp.ClientError, ValueError, KeyError, TypeError) as error:
                        failures.append(f"{type(error).__name__}: {error}")
        except TimeoutError:
            failures.append(f"no answer in {self._timeout_s:g} s")
        raise EnvError("; ".join(failures))

    async def _post(self, messages: Sequence[Mapping[str, Any]]) -> str:
        body = {**self._body, "messages": list(messages)}
        async with (
            aiohttp.ClientSession(headers=self._headers) as session,
            session.post(self.url, json=body) as response,
        ):
            if response.status != 200:
                raise ValueError(f"status {response.status}: {(await response.text())[:200]}")
            answer = await response.json(content_type=None)
        text = answer["choices"][0]["message"]["content"]
        if not isinstance(text, str) or not text.strip():
            raise ValueError("the answer has no text")
        return text
