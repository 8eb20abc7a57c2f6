"""Our receivers inside a vLLM worker: a weight-transfer engine of vLLM, named `agentrl`.

    /init_weight_transfer_engine  {"backend", "info"}      -> make_receiver, connect
    /collective_rpc               stage_weights, staged_weights     (see `staging.py`)
    /start_weight_update
    /update_weights               {"ticket": {...}}        -> swap what is staged, or receive it
    /finish_weight_update         {"weight_version"}       -> layers as their kernels want them

A tensor is compared with its digest before a model sees it, and a model is filled whole or not at
all (`reload.py`). Where there can be a second copy of the model (`twin.py`), weights are staged:
they go into that while the server samples, and the update swaps the two. After a failed update the
server may hold partly old and partly new weights: it must not sample until one succeeds.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from agentrl.engine import WeightTicket
from agentrl.errors import SyncError
from agentrl.sync.adapters import Merger
from agentrl.sync.choose import make_receiver
from agentrl.sync.transfer import WeightReceiver
from agentrl.sync.vllm.reload import ReloadableModel
from agentrl.sync.vllm.staging import SpareModel, Staging
from agentrl.sync.vllm.twin import ModelTwin, make_twin
from agentrl.sync.wire.checksum import weight_digests

logger = logging.getLogger(__name__)


@dataclass
class InitInfo(WeightTransferInitInfo):
    """The body of a request to `/init_weight_transfer_engine`."""

    backend: str
    """Backend name in the tickets."""
    info: dict[str, Any] = field(default_factory=dict)
    """Answer of `WeightSender.connect`."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """The body of a request to `/update_weights`."""

    ticket: dict[str, Any]
    """The fields of a `WeightTicket`."""


class AgentrlWeightTransferEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Puts the weights of tickets into a worker's model."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._receiver: WeightReceiver | None = None
        self._backend = ""
        self._merger = Merger(self.model_config.model)
        self._serving = ReloadableModel(self.model, self.model_config)
        self._reloading = False
        self._staging = Staging()
        self._spare = SpareModel(lambda: make_twin(self.vllm_config, self.device, self._serving))

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Connect to the sender of the weights."""
        self._staging.wait()
        info = dict(init_info.info)
        if "rank" in info:
            info["rank"] += self._worker(info["workers"])
        self._take(init_info.backend).connect(info)

    def _worker(self, expected: int) -> int:
        """The number of this worker in its engine."""
        config = self.parallel_config
        if config.world_size != expected:
            raise SyncError(
                f"this server has {config.world_size} workers, the sender expects {expected} an "
                "engine; give all servers the same tensor and pipeline parallelism"
            )
        return config.rank

    def _take(self, backend: str) -> WeightReceiver:
        if self._receiver is None or self._backend != backend:
            self._release()
            self._receiver, self._backend = make_receiver(backend), backend
        return self._receiver

    def start_weight_update(self) -> None:
        """Nothing yet: layers are taken apart only for weights that are not staged."""

    def finish_weight_update(self) -> None:
        """Bring the layers into the layout of their kernels."""
        if self._reloading:
            self._serving.finish()
            self._reloading = False

    def stage_weights(self, ticket: WeightTicket) -> None:
        """Begin to load weights into the second copy of the model, in a thread.

        Nothing is done where there is none; `receive_weights` then loads them itself.
        """
        self._staging.wait()
        twin = self._spare.get()
        if twin is not None:
            self._staging.begin(ticket, lambda ticket: self._load_twin(twin, ticket))

    def staged_weights(self) -> bool:
        """True if no thread is loading weights."""
        return not self._staging.running

    def weight_digests(self) -> dict[str, list[Any]]:
        """Digests of the parameters that the model computes with, under its own names."""
        return weight_digests(self.model.named_parameters())

    def _load_twin(self, twin: ModelTwin, ticket: WeightTicket) -> None:
        twin.spare.begin()
        self._load(twin.spare, ticket)
        twin.spare.finish()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class, which would wait for an accelerator that a CPU has not."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Take all weights of a ticket, or raise and leave a model that can be loaded again."""
        ticket = WeightTicket(**update_info.ticket)
        if self._staging.holds(ticket):
            twin = self._spare.get()
            assert twin is not None
            twin.swap()
            return
        self._serving.begin()
        self._reloading = True
        try:
            self._load(self._serving, ticket)
        except BaseException:
            self._reloading = False
            raise

    def _load(self, model: ReloadableModel, ticket: WeightTicket) -> None:
        receiver = self._take(ticket.backend)
        # Closed at once on errors: other engines may be waiting for this one in a broadcast.
        with contextlib.closing(receiver.receive(ticket)) as weights:
            model.load(self._merger.whole(weights), keeps=getattr(receiver, "keeps", False))

    def shutdown(self) -> None:
        """Release what the receiver holds."""
        self._staging.wait()
        self._release()

    def _release(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.close()
