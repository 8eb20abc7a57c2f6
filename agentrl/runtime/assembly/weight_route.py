"""The route of weights to the engines of a run: backend, address and device.

Where it cannot be known whether a device can be shared or reached, the way through the host's
memory is taken, which always works; `sync.backend` overrides that.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from agentrl.config.fleet import RayRuntime, ServingSection, SyncSection, VllmServing
from agentrl.errors import ConfigError
from agentrl.models.device import pick_device
from agentrl.runtime.assembly.layout import engine_width
from agentrl.serving.vllm.command import vllm_device
from agentrl.sync import find_transfer, resolve_backend
from agentrl.sync.choose import OWN_TRANSFER


def section_backend(serving: ServingSection, sync: SyncSection, *, device: str) -> str:
    """The weight backend of a run whose trainer is in this process, on a `model.device`.

    Raises:
        ConfigError: the one that was asked for cannot reach the engines.
    """
    return resolve_backend(
        sync,
        engine_kind="embedded" if serving.engine == "embedded" else "vllm",
        same_host=urls_are_local(serving.urls),
        shared_weights=serving.engine == "embedded",
        cuda=device_to_device(serving, sync, device=device),
    )


def transfer_name(backend: str) -> str:
    """The weight-transfer backend of vLLM that receives what `backend` sends; ours has one name."""
    kind = find_transfer(backend)
    assert kind is not None, backend
    return kind.server_plugin


def transfer_environment(backend: str) -> dict[str, str]:
    """Environment variables of a vLLM server, with which it may load a user's own backend."""
    return {OWN_TRANSFER: backend} if ":" in backend else {}


def device_to_device(serving: ServingSection, sync: SyncSection, *, device: str) -> bool:
    """Weights can go from the trainer's GPU, in this process, to those of the servers.

    NCCL connects different devices only; what shares one gets its weights through the host's
    memory, or by `ipc`.
    """
    import torch

    if serving.engine == "embedded" or pick_device(device).type != "cuda":
        return False
    if serving.engine == "external":
        return strangers_take_cuda(serving.urls, sync)
    if vllm_device() != "cuda":
        return False
    return _shares_device(sync) or torch.cuda.device_count() > gpus_needed(serving)


def rank_to_engine(section: RayRuntime, serving: ServingSection, sync: SyncSection) -> bool:
    """Weights can go from the GPUs of ranks to those of engines, on Ray."""
    if serving.engine == "embedded" or section.gpus_per_trainer == 0:
        return False
    if serving.urls:
        return strangers_take_cuda(serving.urls, sync)
    if section.gpus_per_engine == 0:
        return False
    apart = section.placement == "disaggregated" and (
        min(section.gpus_per_trainer, section.gpus_per_engine) >= 1
    )
    return apart or _shares_device(sync)


def strangers_take_cuda(urls: Sequence[str], sync: SyncSection) -> bool:
    """Servers that run already have GPUs that are not the trainer's.

    As far as it can be known from here: the user says so, or they are elsewhere and vLLM here is
    one for GPUs.
    """
    asked = find_transfer(sync.backend)
    if asked is not None and asked.needs_cuda:
        return True
    try:
        return not urls_are_local(urls) and vllm_device() == "cuda"
    except ConfigError:  # not installed here, which servers elsewhere do not need
        return False


def own_address(urls: Sequence[str]) -> str:
    """This machine's address as servers at these URLs reach it: that of the route there.

    Raises:
        ConfigError: there is none.
    """
    if urls_are_local(urls):
        return "127.0.0.1"
    host = next(url for url in map(urlsplit, urls) if not _is_local(url)).hostname
    try:
        ((family, kind, _, _, address), *_) = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return probe.getsockname()[0]
    except OSError as error:
        raise ConfigError(f"serving.urls: no way to {host}: {error}; correct the URL") from error


def urls_are_local(urls: Sequence[str]) -> bool:
    """All engines run on this machine, as far as `serving.urls` shows; without any they do."""
    return all(_is_local(urlsplit(url)) for url in urls)


def gpus_needed(section: VllmServing) -> int:
    """GPUs of all servers that are started on this machine."""
    return engine_width(section) * section.replicas


def _shares_device(section: SyncSection) -> bool:
    asked = find_transfer(section.backend)
    return asked is not None and asked.shares_device


def _is_local(url: SplitResult) -> bool:
    return url.hostname in ("127.0.0.1", "localhost", "::1")
