"""New weights into one vLLM server: its weight-transfer lifecycle, and what must follow it.

    /init_weight_transfer_engine    once; our plugin (`agentrl.sync.vllm.plugin`) meets the sender
    /collective_rpc                 stage_weights, staged_weights: before the server is paused
    /update_weight_version          "torn"
    /start_weight_update, /update_weights, /finish_weight_update
    /reset_prefix_cache?reset_running_requests=true
    /update_weight_version          the number

A client that finds the server between the first call and the last, even after a crash, reads that
its weights are torn. The reset makes an update exact. Without it prompts that begin later would
read keys and values of older weights out of the prefix cache, and so would the next token of every
frozen request. With it, frozen requests lose their cache, not their tokens: they are prefilled
again under the new weights and go on, with the draws of their seed where they were.

A server without the plugin can still read whole checkpoints from a folder, through vLLM's own
`reload_weights`; nothing proves there that the tensors arrived as they were sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import PurePath
from typing import Any

from agentrl.engine import WeightTicket
from agentrl.errors import EngineError, SyncError, WeightsDoNotFit
from agentrl.serving.vllm.wire import TORN

Ask = Callable[..., Awaitable[dict[str, Any]]]
"""`(method, path, content=None)` to the JSON of a success; raises `EngineError`."""

_NATIVE = frozenset({"nccl", "sparse_nccl"})
"""Backends of vLLM itself: their infos go through as they are."""
_POLL_S = 0.02
"""Between two looks at what is staged; each takes the engine a moment between two tokens."""
_NO_TRANSFER = "Weight transfer not configured"
_UNFIT = re.compile(
    r"weights have no place in|got no weight|does not fit the model: (AssertionError|ValueError)"
)
"""Words of `sync.vllm.reload` for weights whose names or shapes are not those of its model."""
_NEVER = "goes on with its first ones"
"""Words of `sync.vllm.reload` for a model that vLLM can only load when it starts."""
_STILL_OPEN = "already active"


async def prepare(ask: Ask, backend: str, info: Mapping[str, Any]) -> None:
    """Connect the server to the sender.

    Raises:
        SyncError: it cannot.
    """
    meeting = dict(info) if backend in _NATIVE else {"backend": backend, "info": dict(info)}
    try:
        await ask("POST", "/init_weight_transfer_engine", {"init_info": meeting})
    except EngineError as error:
        if backend == "disk" and _NO_TRANSFER in str(error):
            return  # `_reload` needs no meeting
        raise _explained(error, backend) from None


async def stage(ask: Ask, ticket: WeightTicket) -> None:
    """Stage weights in the server beside those it samples with; returns once it has them.

    Raises:
        EngineError: it cannot, or does not answer; `update` brings them all the same.
    """
    if ticket.backend in _NATIVE:
        return
    call: dict[str, Any] = {"method": "stage_weights", "kwargs": {"ticket": _plain(ticket)}}
    while True:
        answer = await ask("POST", "/collective_rpc", call)
        if all((worker or {}).get("done") for worker in answer.get("results", ())):
            return
        await asyncio.sleep(_POLL_S)
        call = {"method": "staged_weights"}


async def update(ask: Ask, ticket: WeightTicket, *, sees: bool = False) -> None:
    """From the first tensor to an empty cache. The server is paused.

    Args:
        ask: sends a request to the server.
        ticket: which weights.
        sees: whether the model reads images, so that features of the older weights must go, too.

    Raises:
        SyncError: it failed somewhere; the server's weights may be torn.
    """
    try:
        await ask("POST", "/update_weight_version", {"new_version": TORN})
        await _load(ask, ticket)
        reset = await ask("POST", "/reset_prefix_cache?reset_running_requests=true")
        if not reset.get("success"):
            raise SyncError(f"the server could not empty its prefix cache: {reset}")
        if sees:
            await ask("POST", "/reset_encoder_cache")
        await ask("POST", "/update_weight_version", {"new_version": str(ticket.version)})
    except EngineError as error:
        raise _explained(error, ticket.backend) from None


async def _load(ask: Ask, ticket: WeightTicket) -> None:
    try:
        await _start(ask)
    except EngineError as error:
        if ticket.backend != "disk" or _NO_TRANSFER not in str(error):
            raise
        await _reload(ask, ticket)
        return
    info = dict(ticket.info) if ticket.backend in _NATIVE else {"ticket": _plain(ticket)}
    await ask("POST", "/update_weights", {"update_info": info})
    await ask("POST", "/finish_weight_update")


async def _start(ask: Ask) -> None:
    try:
        await ask("POST", "/start_weight_update")
    except EngineError as error:
        if _STILL_OPEN not in str(error):
            raise
        # An update that failed in its last step has left vLLM's session open.
        with contextlib.suppress(EngineError):
            await ask("POST", "/finish_weight_update")
        await ask("POST", "/start_weight_update")


async def _reload(ask: Ask, ticket: WeightTicket) -> None:
    """A whole checkpoint from a folder into a server without our plugin."""
    info = ticket.info
    if info.get("patches_follow"):
        raise SyncError(
            "the server was started without a weight-transfer backend, so it can only read whole "
            f"checkpoints, but version {ticket.version} may be a patch; set sync.dense_every: 1, "
            'or start the server with --weight-transfer-config \'{"backend":"agentrl"}\''
        )
    folder = PurePath(info["directory"]) / info["folder"]
    call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    await ask("POST", "/collective_rpc", call)


def _plain(ticket: WeightTicket) -> dict[str, Any]:
    return {
        "backend": ticket.backend,
        "version": ticket.version,
        "info": dict(ticket.info),
        "checksum": ticket.checksum,
    }


def _explained(error: EngineError, backend: str) -> SyncError:
    """As `SyncError`, with what to do where vLLM names nothing."""
    if _NO_TRANSFER in str(error):
        wanted = backend if backend in _NATIVE else "agentrl"
        return SyncError(
            f"{error}; weights by {backend!r} need a server started with "
            f'--weight-transfer-config \'{{"backend":"{wanted}"}}\''
        )
    if _UNFIT.search(str(error)):
        return WeightsDoNotFit(
            f"{error}; the server holds another model than the one that is trained: start it with "
            "that of model.path"
        )
    if _NEVER in str(error):
        return WeightsDoNotFit(str(error))
    return error if isinstance(error, SyncError) else SyncError(str(error))
