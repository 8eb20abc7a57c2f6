"""`VllmLeanEngine`: a vLLM server whose turns go over the lean connection and the rest over HTTP.

The server runs `vllm_app`'s middleware. Where it listens is asked over HTTP before each dialling,
because a server that was started again listens somewhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from agentrl.engine import EngineHealth
from agentrl.errors import EngineError, EngineRefused
from agentrl.serving.lean.client import LeanEngine
from agentrl.serving.lean.frames import PROTOCOL
from agentrl.serving.lean.link import LinkStats
from agentrl.serving.lean.vllm_adapter import START_VERSION
from agentrl.serving.lean.vllm_app import PATH
from agentrl.serving.vllm import VllmEngine
from agentrl.types import Generation, ImageSpan, SamplingParams


class VllmLeanEngine(VllmEngine):
    """As `VllmEngine`, with another way for turns."""

    def __init__(self, url: str, *, secret: str, **options: Any) -> None:
        """Take the server.

        Args:
            url: as `http://host:port`.
            secret: AGENTRL_LEAN_SECRET of the server.
            options: as `VllmEngine`.
        """
        super().__init__(url, **options)
        self._lean = LeanEngine(
            self._locate, name=self.name, secret=secret, turn_timeout_s=self._turn_limit_s
        )

    @property
    def stats(self) -> LinkStats:
        """Counts of the lean connection."""
        return self._lean.stats

    async def connect(self) -> None:
        """As `VllmEngine.connect`, and dial.

        Raises:
            EngineRefused: the server does not serve the model, or has no lean listener that can be
                reached with this secret.
        """
        await super().connect()
        self.reports_cached = self._keeps_prefixes  # the lean answer always says it
        await self._lean.connect()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session_id: str,
        images: Sequence[ImageSpan] = (),
    ) -> Generation:
        """See `Generator.generate`. Cancelling it ends the request at the server."""
        if images:
            # A lean frame holds ids alone.
            return await super().generate(prompt_ids, sampling, session_id, images)
        self._must_be_fit()
        if not self._connected:
            await self.connect()
            self._must_be_fit()
        limit = (self._max_context or 0) - len(prompt_ids)
        if not prompt_ids or min(limit, sampling.max_tokens) < 1:
            raise EngineRefused(
                f"request of session {session_id!r}: {len(prompt_ids)} prompt tokens and "
                f"max_tokens {sampling.max_tokens} do not fit a context of {self._max_context}"
            )
        if limit < sampling.max_tokens:
            sampling = replace(sampling, max_tokens=limit)
        aborts = self._aborts
        generation = await self._lean.generate(prompt_ids, sampling, session_id)
        self._check_whole(generation, session_id, aborts)
        if START_VERSION in generation.policy_versions:
            generation = self._numbered(generation)
        if generation.policy_versions:
            # Another client of this server may have brought newer weights.
            self._version = max(self._version, generation.policy_versions[-1])
        return generation

    def _numbered(self, generation: Generation) -> Generation:
        """The server does not know the number of the weights it was started with."""
        start = self.start_version
        versions = (start if v == START_VERSION else v for v in generation.policy_versions)
        return replace(generation, policy_versions=tuple(versions))

    async def end_session(self, session_id: str) -> None:
        """The server holds the session's ids no longer."""
        await self._lean.end_session(session_id)

    async def health(self) -> EngineHealth:
        """As `VllmEngine.health`; ready only if turns reach the server, too."""
        health = await super().health()
        if not health.ready:
            return health
        try:
            await self._lean.connect()
        except EngineError as error:
            return replace(health, ready=False, detail=str(error))
        return health

    async def close(self) -> None:
        """Close all connections; what is in flight fails. The server goes on."""
        await self._lean.close()
        await super().close()

    async def _locate(self) -> str:
        """The lean address of the server, whichever it is now."""
        answer = await self._http.expect("GET", PATH, limit_s=self._probe_limit_s)
        said = answer.json()
        host = said.get("host") if isinstance(said, dict) else None
        if not isinstance(host, str) or not isinstance(said.get("port"), int):
            raise EngineError(f"{self.url}{PATH} answered {answer.body[:200]!r}, no address")
        if said.get("protocol") != PROTOCOL:
            raise EngineError(
                f"{self.url} speaks lean protocol {said.get('protocol')}, this end {PROTOCOL}; use "
                "the same version of agentrl on both sides"
            )
        if host in ("0.0.0.0", "::", ""):  # every address of that machine: the one we know
            host = urlsplit(self.url).hostname or host
        return f"lean://{f'[{host}]' if ':' in host else host}:{said['port']}"
