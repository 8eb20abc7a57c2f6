"""A vLLM server's own engine as an `Engine`, for the lean listener inside that server.

Sampling parameters are those that `serving.vllm.wire` would send over HTTP, read back from its
JSON, so that a turn is the same turn whichever way it came. Control stays with HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn
from uuid import uuid4

import orjson

from agentrl.engine import Engine, EngineHealth, WeightTicket, refuse_images
from agentrl.errors import EngineError, EngineRefused
from agentrl.serving.vllm.wire import generate_body, read_version
from agentrl.types import FinishReason, Generation, ImageSpan, SamplingParams

START_VERSION = -1
"""Stands for the weights the server was started with; its user knows their number."""

_FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
}


class VllmAdapter(Engine):
    """`engine_client` of a vLLM API server."""

    def __init__(self, state: Any) -> None:
        """Take `app.state` of the API server."""
        self.name = "vllm"
        self._state = state
        self._version = START_VERSION
        self._in_flight = 0

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session_id: str,
        images: Sequence[ImageSpan] = (),
    ) -> Generation:
        """See `Generator.generate`. Cancelling it aborts the request."""
        refuse_images(self.name, images)
        from vllm.exceptions import GracefulHTTPError, VLLMClientError

        self._in_flight += 1
        try:
            final = await self._final(list(prompt_ids), _parameters(sampling))
        except (VLLMClientError, GracefulHTTPError, ValueError) as error:
            raise EngineRefused(f"vLLM does not take the request: {error}") from error
        except EngineError:
            raise
        except Exception as error:  # recording boundary: vLLM's errors differ by version
            raise EngineError(f"vLLM failed: {error!r}") from error
        finally:
            self._in_flight -= 1
        generation = _generation(final, sampling)
        if generation.policy_versions:
            self._version = generation.policy_versions[-1]
        return generation

    async def _final(self, ids: list[int], parameters: Any) -> Any:
        from vllm.inputs import TokensPrompt

        client = self._state.engine_client
        if client.errored:
            raise EngineRefused("vLLM's engine is dead; start the server again")
        client.check_admission(1)
        (prompt,) = await client.renderer.render_cmpl_async([TokensPrompt(prompt_token_ids=ids)])
        final = None
        async for output in client.generate(prompt, parameters, f"lean-{uuid4().hex}"):
            final = output
        if final is None:
            raise EngineError("vLLM ended a request without an answer")
        return final

    @property
    def version(self) -> int:
        """Of the last turn's last token; HTTP knows better."""
        return self._version

    async def health(self) -> EngineHealth:
        """True while vLLM's engine lives."""
        dead = bool(self._state.engine_client.errored)
        return EngineHealth(
            ready=not dead,
            version=self._version,
            in_flight=self._in_flight,
            detail="vLLM's engine is dead" if dead else "",
        )

    async def pause(self) -> None:
        """Refuse: vLLM's own endpoints pause the server."""
        _not_here("pause")

    async def resume(self) -> None:
        """Refuse: vLLM's own endpoints resume the server."""
        _not_here("resume")

    async def load_weights(self, ticket: WeightTicket) -> None:
        """Refuse: vLLM's own endpoints load weights."""
        _not_here("load_weights")

    async def close(self) -> None:
        """Refuse: the server owns the engine and closes it."""
        _not_here("close")


def _not_here(what: str) -> NoReturn:
    raise EngineError(f"{what} of a vLLM server goes over HTTP; the lean connection has turns only")


def _parameters(sampling: SamplingParams) -> Any:
    from vllm.sampling_params import RequestOutputKind
    from vllm.sampling_params import SamplingParams as VllmParams

    body = orjson.loads(generate_body((), sampling, model="", max_tokens=sampling.max_tokens))
    parameters = VllmParams(**body["sampling_params"])
    parameters.output_kind = RequestOutputKind.FINAL_ONLY
    return parameters


def _generation(final: Any, sampling: SamplingParams) -> Generation:
    """The one output of a finished request."""
    output = final.outputs[0]
    ids = tuple(output.token_ids)
    reason = _FINISH.get(output.finish_reason)
    if reason is FinishReason.STOP and (not ids or ids[-1] not in sampling.stop_token_ids):
        reason = None
    if reason is None:
        raise EngineError(
            f"vLLM ended a turn with {output.finish_reason!r} ({output.stop_reason!r}) after token "
            f"{ids[-1:]}; expected one of stop_token_ids {sampling.stop_token_ids}, the length or "
            "an abort"
        )
    versions: list[int] = []
    for span in output.weight_versions or ():
        version = read_version(span.version, START_VERSION)
        versions.extend([version] * (span.end - span.start))
    return Generation(
        ids=ids,
        log_probs=_log_probs(ids, output.logprobs or ()),
        finish_reason=reason,
        policy_versions=tuple(versions),
        cached_tokens=final.num_cached_tokens or 0,
    )


def _log_probs(ids: Sequence[int], tables: Sequence[Any]) -> tuple[float, ...]:
    """The sampled tokens' own, from one table for each position."""
    found = tuple(
        table[token].logprob if table and token in table else math.nan
        for token, table in zip(ids, tables, strict=True)
    )
    if not math.isfinite(sum(found)):
        raise EngineError(
            "vLLM sampled a token without a log-probability (its logits are not finite); check the "
            "weights it was given"
        )
    return found
