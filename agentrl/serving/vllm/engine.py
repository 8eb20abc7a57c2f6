"""`VllmEngine`: one vLLM server as an engine, through vLLM's own RL surface.

    generate        POST /inference/v1/generate          ids in; ids, log-probs, version spans out
    pause, resume   POST /pause?mode=keep, /resume       frozen requests keep their place
    load_weights    POST /start_weight_update, /update_weights, /finish_weight_update
                    then /reset_prefix_cache
    sleep           POST /sleep; `load_weights` and `resume` wake what they need (see `sleep`)

Invariants. A turn is sent once: a failure after which the server may have sampled is an
`EngineError`, never a second try. After new weights no key or value of older ones is read again:
the prefix cache is emptied, and requests frozen in mid-generation are computed again under the new
weights before their next token, which is exactly what the trainer computes for those tokens. A
server whose update failed stays paused, says so to all who ask, and every engine of it refuses
turns and `resume` until a later update succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

from agentrl.engine import LONGEST_TURN_S, Engine, EngineHealth, WeightTicket, refuse_images
from agentrl.errors import EngineError, EngineRefused
from agentrl.serving.member import WATCH_SESSION
from agentrl.serving.vllm.http import Http, HttpAnswer, accept
from agentrl.serving.vllm.metrics import keeps_prefixes, read_metrics
from agentrl.serving.vllm.pictures import PictureSource, PromptPictures, misses_image
from agentrl.serving.vllm.sleep import ServerSleep, SharedDevice, SleepLevel
from agentrl.serving.vllm.sockets import NoDescriptor, connection_of_turn
from agentrl.serving.vllm.update import prepare, stage, update
from agentrl.serving.vllm.wire import (
    TORN,
    generate_body,
    read_generation,
    read_version,
    says_cached,
)
from agentrl.types import FinishReason, Generation, ImageSpan, SamplingParams

logger = logging.getLogger(__name__)

GENERATE = "/inference/v1/generate"
_CONTROL_S = 600.0
"""Seconds for a pause, an update or another change."""
_NONE = -1
"""Version of torn weights: older than any that can be brought."""
PauseMode = Literal["keep", "wait", "abort"]


class VllmEngine(Engine):
    """A vLLM server that runs somewhere; `close` ends the connections, not the server.

    The server needs `VLLM_SERVER_DEV_MODE=1`, `--enable-scale-out`, `--logprobs-mode
    processed_logprobs`, and for new weights `--weight-transfer-config '{"backend":"agentrl"}'`;
    `agentrl.serving.vllm.check` says what is missing.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "",
        model: str = "policy",
        max_context_tokens: int | None = None,
        start_version: int = 0,
        adopt: bool = False,
        turn_limit_s: float = LONGEST_TURN_S,
        probe_limit_s: float = 10.0,
        pictures: PictureSource | None = None,
    ) -> None:
        """Take the server; nothing is sent before `connect` or the first request.

        Args:
            url: as `http://host:port`.
            name: unique behind one balancer; default the URL.
            model: the served model name.
            max_context_tokens: most tokens of prompt and turn together; None asks the server.
            start_version: the version of the weights that the server was started with.
            adopt: whatever weights the server holds, call them `start_version` at `connect`: for
                a server that ran before the run did, whose number is that of another run.
            turn_limit_s: seconds a turn may take, pauses included; a rollout ends its turn
                earlier, by `TURN_LIMIT_S`.
            probe_limit_s: seconds for each question of `health`.
            pictures: the images of a run whose model reads images.
        """
        self.name = name or url
        self.model = model
        self.start_version = start_version
        self._http = Http(url)
        self._turn = f"a turn at {self._http.url}"
        self._max_context = max_context_tokens
        self._adopt = adopt
        self._turn_limit_s = turn_limit_s
        self._probe_limit_s = probe_limit_s
        self._pictures = None if pictures is None else PromptPictures(pictures)
        self._version = start_version
        self._connected = False
        self._keeps_prefixes = False
        self._unfit = ""
        self._updating = False
        self._closed = False
        self._in_flight = 0
        self._aborts = 0
        """Times that turns were ended from here."""
        self._sleep = ServerSleep(f"server {self.name} at {self._http.url}", self._ask)
        self._control = asyncio.Lock()
        """Pause, resume and updates come one after the other."""

    @property
    def url(self) -> str:
        """Address of the server."""
        return self._http.url

    async def connect(self) -> None:
        """Ask the server for its context and its weights' version. Done by the first turn, too.

        Raises:
            EngineRefused: it is not there, or does not serve `model`.
        """
        limit_s = _CONTROL_S
        answer = await self._http.expect("GET", "/v1/models", limit_s=limit_s)
        served = {card["id"]: card for card in (answer.json() or {}).get("data", ())}
        if self.model not in served:
            raise EngineRefused(
                f"engine {self.name}: serves {sorted(served) or 'no model'}, expected "
                f"{self.model!r}; start it with --served-model-name {self.model}"
            )
        theirs = served[self.model].get("max_model_len") or 0
        self._max_context = min(self._max_context or theirs, theirs or self._max_context or 0)
        await self._read_version(limit_s)
        if self._adopt and not self._unfit:
            await self.adopt_version(self.start_version)
            self._adopt = False
        page = await self._http.send("GET", "/metrics", limit_s=limit_s)
        self._keeps_prefixes = keeps_prefixes(page.body.decode(errors="replace"))
        self._connected = True

    async def _read_version(self, limit_s: float, *, wait: bool = True) -> None:
        """The server's answer counts: it may have been updated, or restarted, by others."""
        answer = await self._http.expect("GET", "/weight_info", limit_s=limit_s, wait=wait)
        text = str((answer.json() or {}).get("weight_version", ""))
        if text == TORN:
            self._version = _NONE
            self._unfit = self._unfit or (
                f"engine {self.name} has torn weights: an update of them failed or is not over"
            )
            return
        self._version, self._unfit = read_version(text, self.start_version), ""

    def _must_be_fit(self) -> None:
        if self._unfit or self._closed:
            raise EngineRefused(self._unfit or f"engine {self.name} is closed")

    # -- turns ------------------------------------------------------------------------------

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session_id: str,
        images: Sequence[ImageSpan] = (),
    ) -> Generation:
        """See `agentrl.engine.Generator.generate`. Cancelling it ends the request at the server."""
        pictures = self._pictures
        if pictures is None:
            refuse_images(self.name, images)
        self._must_be_fit()
        if not self._connected:
            await self.connect()
            self._must_be_fit()
        context = self._max_context or 0
        limit = min(sampling.max_tokens, context - len(prompt_ids))
        if not prompt_ids or limit < 1:
            raise EngineRefused(
                f"request of session {session_id!r}: {len(prompt_ids)} prompt tokens and "
                f"max_tokens {sampling.max_tokens} do not fit a context of {context}"
            )
        aborts = self._aborts
        self._in_flight += 1
        try:
            # A question must not wait behind the very turns whose engine it is about.
            question = session_id == WATCH_SESSION
            async with nullcontext() if question else connection_of_turn():
                if pictures is None or not images:
                    body = generate_body(prompt_ids, sampling, model=self.model, max_tokens=limit)
                    answer = await self._send_turn(body)
                else:
                    answer = await self._show(
                        pictures, prompt_ids, sampling, images, session_id, max_tokens=limit
                    )
        finally:
            self._in_flight -= 1
        accept(answer, self._turn)
        if pictures is not None and images:
            pictures.check(answer.body, prompt_ids, images, session_id)
        generation = read_generation(answer.body, sampling, start_version=self.start_version)
        if self._keeps_prefixes and not self.reports_cached:
            self.reports_cached = says_cached(answer.body)
        self._check_whole(generation, session_id, aborts)
        if generation.policy_versions:
            # Another client of this server may have brought newer weights.
            self._version = max(self._version, generation.policy_versions[-1])
        return generation

    async def _send_turn(self, body: bytes) -> HttpAnswer:
        return await self._http.send("POST", GENERATE, body, limit_s=self._turn_limit_s)

    async def _show(
        self,
        pictures: PromptPictures,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        images: Sequence[ImageSpan],
        session_id: str,
        *,
        max_tokens: int,
    ) -> HttpAnswer:
        """Send a turn with images; again, with all files, if the server has dropped one."""
        ids = pictures.collapsed(prompt_ids, images, session_id)
        whole = False
        while True:
            if whole or not pictures.all_known(images):
                # Decoding images here would hold up the turns of other rollouts.
                parts = await asyncio.to_thread(pictures.parts, images, whole=whole)
            else:
                parts = pictures.parts(images, whole=False)
            answer = await self._send_turn(
                generate_body(ids, sampling, model=self.model, max_tokens=max_tokens, images=parts)
            )
            # Such a request was turned away before anything was sampled.
            if whole or answer.status == 200 or not misses_image(answer.body):
                return answer
            whole = True

    def _check_whole(self, generation: Generation, session_id: str, aborts: int) -> None:
        """Raise for a turn that the server aborted unasked: it is lost with its server."""
        aborted = generation.finish_reason is FinishReason.ABORT
        if aborted and (self._unfit or self._aborts == aborts):
            why = self._unfit or "the server ended it, as one that shuts down does"
            raise EngineError(f"the turn of session {session_id!r} was lost: {why}")

    # -- control ----------------------------------------------------------------------------

    async def pause(self, mode: PauseMode = "keep") -> None:
        """Stop producing tokens; returns once the server has stopped.

        Args:
            mode: `keep` freezes requests where they are, `wait` lets them end first, `abort` ends
                them at once, with the tokens they have and `FinishReason.ABORT`.
        """
        self._aborts += mode == "abort"
        async with self._control:
            # The cache is emptied after new weights, and only then.
            await self._ask("POST", f"/pause?mode={mode}&clear_cache=false")

    async def resume(self) -> None:
        """Go on producing tokens.

        Raises:
            EngineError: the last update failed, so nothing may be sampled.
        """
        async with self._control:
            await self._read_version(_CONTROL_S)
            if self._unfit:
                raise EngineError(f"{self._unfit}; it stays paused until an update succeeds")
            await self._sleep.wake("weights")
            await self._sleep.wake("kv_cache")
            await self._ask("POST", "/resume")

    def share(self, device: SharedDevice) -> None:
        """Allow `sleep`: the server shares `device` with the trainer."""
        self._sleep.device = device

    async def sleep(self, level: SleepLevel) -> None:
        """Free the device that the server shares; see `agentrl.engine.Engine.sleep`."""
        async with self._control:
            await self._ask("POST", "/pause?mode=keep&clear_cache=false")
            await self._sleep.sleep(level)
            if level == 2:
                self._version = _NONE

    async def abort_all(self) -> None:
        """End every request in flight, as `pause("abort")` does, without a pause."""
        self._aborts += 1
        await self._ask("POST", "/abort_requests", {})

    async def adopt_version(self, version: int) -> None:
        """Declare which version the weights have that the server holds, loading nothing.

        Raises:
            EngineError: they are torn, and have none.
        """
        async with self._control:
            await self._read_version(_CONTROL_S)
            if self._unfit:
                raise EngineError(self._unfit)
            await self._ask("POST", "/update_weight_version", {"new_version": str(version)})
            self._version = version

    async def prepare_weights(self, backend: str, info: Mapping[str, Any]) -> None:
        """Prepare a transfer of weights; see `agentrl.engine.Engine.prepare_weights`."""
        async with self._control:
            await prepare(self._ask, backend, info)

    async def stage_weights(self, ticket: WeightTicket) -> None:
        """Stage weights in the workers beside those they sample with, as `Engine.stage_weights`."""
        async with self._control:
            if not self._sleep.asleep:
                await stage(self._ask, ticket)

    async def weight_digests(self) -> Mapping[str, Sequence[Any]]:
        """Digests of the weights of the first worker; see `agentrl.engine.Engine`."""
        answer = await self._ask("POST", "/collective_rpc", {"method": "weight_digests"})
        return next(iter(answer.get("results", ())), None) or {}

    async def load_weights(self, ticket: WeightTicket) -> None:
        """Load new weights; see `agentrl.engine.Engine.load_weights`."""
        async with self._control:
            if not (await self._ask("GET", "/is_paused")).get("is_paused"):
                raise EngineError(f"engine {self.name}: pause before load_weights")
            if ticket.version <= self._version:
                raise EngineError(
                    f"engine {self.name}: version {ticket.version} is not newer than "
                    f"{self._version}"
                )
            done, self._updating = False, True
            try:
                await self._sleep.wake("weights")
                await update(self._ask, ticket, sees=self._pictures is not None)
                done = True
            finally:
                self._updating = False
                # Also when cancelled: the server may be anywhere between two versions.
                if not done:
                    await self._declare_unfit(ticket)
            self._unfit, self._version = "", ticket.version

    async def _declare_unfit(self, ticket: WeightTicket) -> None:
        """No more turns; those that are frozen are notified instead of waiting for a resume."""
        self._unfit = f"engine {self.name} failed to take version {ticket.version} of the weights"
        try:
            await self._http.send(
                "POST", "/pause?mode=abort&clear_cache=false", limit_s=self._probe_limit_s
            )
        except EngineError as error:
            logger.info("engine %s could not end its frozen requests: %s", self.name, error)

    async def _ask(self, method: str, path: str, content: Any = None) -> dict[str, Any]:
        answer = await self._http.expect(method, path, content, limit_s=_CONTROL_S)
        data = answer.json()
        return data if isinstance(data, dict) else {}

    # -- care -------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """See `agentrl.engine.Engine.version`; as this client last received it."""
        return self._version

    async def health(self) -> EngineHealth:
        """State, version and the server's own counters; asks it anew each time."""
        if self._closed:
            return self._health(detail=f"engine {self.name} is closed")
        limit_s = self._probe_limit_s
        try:
            # A wait for a file descriptor of this machine would look like a server that is silent.
            await self._http.expect("GET", "/health", limit_s=limit_s, wait=False)
            if not self._updating and not self._sleep.asleep:
                await self._read_version(limit_s, wait=False)
            page = await self._http.expect("GET", "/metrics", limit_s=limit_s, wait=False)
        except NoDescriptor as error:
            return replace(self._health(detail=str(error)), asked=False)
        except EngineError as error:
            return self._health(detail=str(error))
        return self._health(detail=self._unfit, metrics=read_metrics(page.body.decode()))

    def _health(self, *, detail: str, metrics: dict[str, float] | None = None) -> EngineHealth:
        numbers = metrics or {}
        load = int(numbers.get("running", 0) + numbers.get("waiting", 0))
        return EngineHealth(
            ready=not detail,
            version=self._version,
            in_flight=max(load, self._in_flight),
            detail=detail,
            metrics=metrics,
        )

    async def close(self) -> None:
        """Close the connections; what is in flight fails. The server goes on."""
        self._closed = True
        await self._http.close()
