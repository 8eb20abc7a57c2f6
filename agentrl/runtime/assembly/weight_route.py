"""How weights reach the engines of a run: by which backend, from which address, over which device.

Where it cannot be known whether a device can be shared or reached, the way through the host's
memory is taken, which always works; `sync.backend` overrides that.
"""

from __future__ import annotations

import socket
from urllib.parse import SplitResult, urlsplit

from agentrl.config import RunConfig
from agentrl.config.fleet import VllmServing
from agentrl.errors import ConfigError
from agentrl.runtime.assembly.layout import engine_width


def section_backend(config: RunConfig) -> str:
    """The weight backend of a run whose trainer is in this process.

    Raises:
        ConfigError: the one that was asked for cannot reach the engines.
    """
    from agentrl.sync import resolve_backend

    section = config.serving
    return resolve_backend(
        config.sync,
        engine_kind="embedded" if section.engine == "embedded" else "vllm",
        same_host=urls_are_local(config),
        shared_weights=section.engine == "embedded",
        cuda=device_to_device(config),
    )


def transfer_name(backend: str) -> str:
    """The weight-transfer backend of vLLM that receives what `backend` sends; ours has one name."""
    return "nccl" if backend == "nccl" else "agentrl"


def device_to_device(config: RunConfig) -> bool:
    """Whether weights can go from the trainer's GPU, in this process, to those of the servers.

    NCCL connects different devices only; what shares one gets its weights through the host's
    memory, or by `ipc`.
    """
    import torch

    from agentrl.serving.vllm.command import vllm_device
    from agentrl.train.model.pretrained import pick_device

    section = config.serving
    if section.engine == "embedded" or pick_device(config.model.device).type != "cuda":
        return False
    if section.engine == "external":
        return strangers_take_cuda(config)
    if vllm_device() != "cuda":
        return False
    return config.sync.backend == "ipc" or torch.cuda.device_count() > gpus_needed(section)


def rank_to_engine(config: RunConfig) -> bool:
    """Whether weights can go from the GPUs of ranks to those of engines, on Ray."""
    section, serving = config.runtime, config.serving
    if section.kind == "local" or serving.engine == "embedded" or section.gpus_per_trainer == 0:
        return False
    if serving.engine == "external":
        return strangers_take_cuda(config)
    if section.gpus_per_engine == 0:
        return False
    apart = section.placement == "disaggregated" and (
        min(section.gpus_per_trainer, section.gpus_per_engine) >= 1
    )
    return apart or config.sync.backend == "ipc"


def strangers_take_cuda(config: RunConfig) -> bool:
    """Whether servers that run already have GPUs that are not the trainer's.

    As far as it can be known from here: the user says so, or they are elsewhere and vLLM here is
    one for GPUs.
    """
    from agentrl.serving.vllm.command import vllm_device

    if config.sync.backend in ("ipc", "nccl"):
        return True
    try:
        return not urls_are_local(config) and vllm_device() == "cuda"
    except ConfigError:  # not installed here, which servers elsewhere do not need
        return False


def own_address(config: RunConfig) -> str:
    """This machine's address as the servers of `serving.urls` reach it: that of the route there.

    Raises:
        ConfigError: there is none.
    """
    if urls_are_local(config):
        return "127.0.0.1"
    host = next(url for url in map(urlsplit, _urls(config)) if not _is_local(url)).hostname
    try:
        ((family, kind, _, _, address), *_) = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return probe.getsockname()[0]
    except OSError as error:
        raise ConfigError(f"serving.urls: no way to {host}: {error}; correct the URL") from error


def urls_are_local(config: RunConfig) -> bool:
    """Whether all engines run on this machine, as far as `serving.urls` tells."""
    return all(_is_local(urlsplit(url)) for url in _urls(config))


def gpus_needed(section: VllmServing) -> int:
    """Of all servers that are started on this machine."""
    return engine_width(section) * section.replicas


def _urls(config: RunConfig) -> tuple[str, ...]:
    return config.serving.urls if config.serving.engine == "external" else ()


def _is_local(url: SplitResult) -> bool:
    return url.hostname in ("127.0.0.1", "localhost", "::1")
