"""vLLM's own NCCL weight transfer, driven from the trainer: for servers without our plugin.

The server runs with `--weight-transfer-config '{"backend": "nccl"}'`. vLLM's trainer engine opens
the group and broadcasts; the calls to the servers are not its but the engines', which make them for
every other backend, too. Needs CUDA and vLLM on both sides, on devices of their own.
"""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentrl.engine import WeightTicket
from agentrl.errors import ConfigError, SyncError
from agentrl.plugins.distribution import install_command
from agentrl.sync.transfer import Weights

Described = Sequence[tuple[str, str, Sequence[int]]]
"""`(name, dtype without "torch.", shape)` of every weight, in the order in which they are sent."""


def need_nccl() -> None:
    """Check that this process can take part.

    Raises:
        ConfigError: no CUDA device, or no vLLM.
    """
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(
            "sync.backend is 'nccl', but torch sees no CUDA device here; set `sync.backend` to "
            "`shm` or `collective`"
        )
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "sync.backend is 'nccl', which needs vLLM beside the trainer; run "
            f"{install_command('vllm')}, or set `sync.backend: collective`"
        )


class NcclSender:
    """Broadcasts through vLLM's engine; see `agentrl.sync.transfer.WeightSender`."""

    backend = "nccl"
    streams = True

    def __init__(
        self,
        describe: Callable[[], Described] | None,
        *,
        address: str,
        bucket_bytes: int,
        workers: int = 1,
    ) -> None:
        """Take the settings; nothing is opened before `connect`.

        Args:
            describe: the weights without their bytes, which vLLM wants to know before the first.
            address: of this host, as the servers reach it.
            bucket_bytes: of one buffer; there are two.
            workers: processes of each server.

        Raises:
            ConfigError: no CUDA, no vLLM, or no description.
        """
        need_nccl()
        if describe is None:
            raise ConfigError("backend nccl needs the names and shapes of the weights beforehand")
        self._describe = describe
        self._address = address
        self._bucket_bytes = bucket_bytes
        self._workers = workers
        self._port = 0
        self._size = 0
        self._source = _Source()
        self._engine: Any = None

    def connect(self, receivers: int) -> Sequence[Mapping[str, Any]]:
        """Choose where to meet; the servers wait there while `send` joins them."""
        self.close()
        with socket.socket() as probe:
            probe.bind((self._address, 0))
            self._port = probe.getsockname()[1]
        self._size = receivers * self._workers + 1
        common = {
            "master_address": self._address,
            "master_port": self._port,
            "world_size": self._size,
            "packed": True,
            "packed_buffer_size_bytes": self._bucket_bytes,
            "packed_num_buffers": 2,
        }
        infos = [{**common, "rank_offset": 1 + i * self._workers} for i in range(receivers)]
        return infos

    def meet(self) -> None:
        """Join the servers, which block in `prepare_weights` until this one comes.

        Raises:
            SyncError: they did not meet.
        """
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        info = NCCLTrainerInitInfo(
            master_address=self._address,
            master_port=self._port,
            world_size=self._size,
            packed=True,
            packed_buffer_size_bytes=self._bucket_bytes,
            packed_num_buffers=2,
            rank=0,
        )
        try:
            self._engine = WeightTransferTrainerFactory.trainer_init(
                info, client=_Silent(), source=self._source.for_vllm()
            )
        except RuntimeError as error:
            raise SyncError(f"the servers did not meet the trainer: {error}") from error

    def announce(self, version: int) -> WeightTicket:
        """Ticket with what vLLM needs to know of a coming `send`."""
        described = self._describe()
        return WeightTicket(
            backend="nccl",
            version=version,
            info={
                "names": [name for name, _, _ in described],
                "dtype_names": [dtype for _, dtype, _ in described],
                "shapes": [list(shape) for _, _, shape in described],
            },
        )

    def send(self, weights: Weights, version: int) -> WeightTicket:
        """Broadcast, while every server is in `/update_weights`.

        Raises:
            SyncError: the weights are not those that were described, or NCCL failed.
        """
        if self._engine is None:
            raise SyncError("the NCCL group has not met; connect first")
        self._source.weights, self._source.described = weights, self._describe()
        try:
            self._engine.send_weights()
        except (RuntimeError, ValueError) as error:
            self.close()
            raise SyncError(f"NCCL broadcast of version {version} failed: {error}") from error
        finally:
            self._source.weights = ()
        return self.announce(version)

    def close(self) -> None:
        """Leave the group. Idempotent."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()


class _Silent:
    """Stands where vLLM's trainer would call the servers; the engines do."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Called by `prepare_weights`."""

    def start_weight_update(self) -> None:
        """Called by `load_weights`."""

    def update_weights(self, update_info: Any) -> None:
        """Called by `load_weights`."""

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Called by `load_weights`."""


class _Source:
    """The weights of the current send, as vLLM reads them."""

    def __init__(self) -> None:
        self.weights: Iterable[tuple[str, Any]] = ()
        self.described: Described = ()

    def for_vllm(self) -> Any:
        """A `WeightSource`; made here, because its base class can only be imported late."""
        import torch
        from vllm.distributed.weight_transfer import ParamMeta, WeightSource

        outer = self

        class Source(WeightSource):
            def metadata(self) -> list[ParamMeta]:
                return [
                    ParamMeta(name, getattr(torch, dtype), tuple(shape))
                    for name, dtype, shape in outer.described
                ]

            def __iter__(self) -> Iterator[tuple[str, Any]]:
                return iter(outer.weights)

        return Source()
