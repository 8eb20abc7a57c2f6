"""The engines' part of a relay; `agentrl.sync.relay.sender` draws all of it."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from torch import Tensor

from agentrl.engine import WeightTicket
from agentrl.errors import SyncError
from agentrl.sync.relay.evidence import Waits
from agentrl.sync.relay.flow import ANSWER_S
from agentrl.sync.relay.links import (
    MemberLink,
    accept_members,
    answer_sender,
    is_member,
    open_listener,
    reach,
    ready,
    reason_of,
)
from agentrl.sync.relay.pump import RelayPump
from agentrl.sync.transfer import MemberLost
from agentrl.sync.wire.buckets import unpack
from agentrl.sync.wire.checksum import empty_bytes
from agentrl.sync.wire.patches import PatchBase, PatchDecoder

SENDER = "the sender of the weights"


class RelayReceiver:
    """Receives weights and passes them on; see `agentrl.sync.transfer.WeightReceiver`."""

    keeps = False
    """A tensor is overwritten when later ones arrive."""

    def __init__(self) -> None:
        self._decoder = PatchDecoder()
        self._info: Mapping[str, Any] | None = None
        self._buffers: list[Tensor] = []

    def connect(self, info: Mapping[str, Any]) -> None:
        """Leave the group there is, and see that the sender of the new one can be reached."""
        self.close()
        reach(info["host"], info["port"], who=SENDER, timeout_s=info["timeout_s"]).close()
        self._info = info

    def receive(self, ticket: WeightTicket) -> Generator[tuple[str, Tensor]]:
        """Take part in the coming send."""
        info = self._info
        if info is None or info["epoch"] != ticket.info["epoch"]:
            raise SyncError(
                f"version {ticket.version} comes through group {ticket.info['epoch']}, this engine "
                f"is in {info['epoch'] if info else 'none'}; prepare it first"
            )
        if not self._buffers:
            self._buffers = [empty_bytes(info["bucket_bytes"]) for _ in range(2)]
        try:
            with contextlib.closing(
                reach(info["host"], info["port"], who=SENDER, timeout_s=info["timeout_s"])
            ) as control:
                yield from self._receive(info, control, ticket.version)
        except BaseException:
            # Also when the engine stops listening: a group is never repaired.
            self.close()
            raise

    def _receive(
        self, info: Mapping[str, Any], control: MemberLink, version: int
    ) -> Iterator[tuple[str, Tensor]]:
        with contextlib.ExitStack() as stack:
            try:
                pump, base = self._join(info, control, version, stack)
                yield from self._tensors(pump, base, version, keep=info["patches_follow"])
            except BaseException as error:
                stack.close()  # the pump, which else speaks on this link, has ended
                what = "cut_off" if isinstance(error, MemberLost) else "gave_up"
                control.say(**{what: reason_of(error)})
                raise

    def _join(
        self,
        info: Mapping[str, Any],
        control: MemberLink,
        version: int,
        stack: contextlib.ExitStack,
    ) -> tuple[RelayPump, PatchBase | None]:
        """Meet the sender and both neighbours; what is opened is closed with the stack."""
        # The sender finds out who hangs; members only notice that it is gone itself.
        limit_s = info["timeout_s"] + 2 * ANSWER_S
        rank, hello = info["rank"], {key: info[key] for key in ("token", "epoch", "rank")}
        address = control.socket.getsockname()[0]
        listener = stack.enter_context(open_listener(address))
        held = self._decoder.have
        control.say(
            **hello,
            version=version,
            listens=[address, listener.getsockname()[1]],
            holds=[held.version, held.checksum] if held else None,
        )
        go = _await_go(control, limit_s)
        behind: MemberLink | None = None
        if go["next"] is not None:
            host, port = go["next"]
            behind = reach(
                host,
                port,
                who=f"rank {rank + 1}",
                timeout_s=info["timeout_s"],
                check=_answers(control, "output"),
            )
            stack.callback(behind.close)
            behind.say(**hello, version=version)
        base = PatchBase(version=go["base"][0], checksum=go["base"][1]) if go["base"] else None
        if base is not None:
            self._decoder.expect(base)
        before = _await_before(listener, control, info, version, limit_s)
        stack.callback(before.close)
        pump = RelayPump(
            rank=rank,
            control=control,
            before=before.socket,
            behind=behind.socket if behind else None,
            buffers=self._buffers,
            limit_s=limit_s,
        )
        stack.callback(pump.stop)
        return pump, base

    def _tensors(
        self, pump: RelayPump, base: PatchBase | None, version: int, *, keep: bool
    ) -> Iterator[tuple[str, Tensor]]:
        def arrived() -> PatchBase:
            return PatchBase(version=version, checksum=pump.checksum)

        stream = unpack(pump.buckets(), version=version)
        if base is not None:
            yield from self._decoder.apply(stream, base, arrived)
        else:
            yield from self._decoder.dense(stream, arrived, keep=keep)

    def close(self) -> None:
        """Leave the group; weights kept for patches stay, their next base decides. Idempotent."""
        self._info, self._buffers = None, []


def _await_go(control: MemberLink, limit_s: float) -> Mapping[str, Any]:
    """The sender's word that all have come."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        ready({control.fileno(): select.POLLIN})
        message = control.read()
        if message is not None and "go" in message:
            return message
        if message is not None:
            raise MemberLost(str(message.get("end", "the sender gave the sync up")))
        if control.ended:
            raise MemberLost(f"{SENDER} is gone, or has given the sync up")
    raise MemberLost(f"{SENDER} did not begin within {limit_s:g} s")


def _answers(control: MemberLink, waits: Waits) -> Callable[[], object]:
    """What answers the sender while this member waits for a neighbour."""
    began = time.monotonic()
    return lambda: answer_sender(control, waits=waits, idle_s=time.monotonic() - began)


def _await_before(
    listener: socket.socket,
    control: MemberLink,
    info: Mapping[str, Any],
    version: int,
    limit_s: float,
) -> MemberLink:
    """The connection of the rank before this one."""
    rank = info["rank"] - 1
    came = accept_members(
        listener,
        (rank,),
        lambda message: is_member(message, info, version),
        timeout_s=limit_s,
        check=_answers(control, "input"),
    )
    if rank not in came:
        raise MemberLost(f"rank {rank} did not reach rank {info['rank']} within {limit_s:g} s")
    return came[rank][0]
