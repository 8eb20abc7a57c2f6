from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from agentrl.config.fleet import SyncSection
from agentrl.engine import WeightTicket
from agentrl.errors import ConfigError, SyncError
from agentrl.sync import make_receiver, make_sender, resolve_backend
from agentrl.sync.ipc import device_digest
from agentrl.sync.vllm.plugin import register
from tests.sync.sync_weights import assert_same, weights

NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing without CUDA")


def resolve(backend: str, **changes) -> str:
    settings = {"engine_kind": "vllm", "same_host": True, "shared_weights": False, "cuda": False}
    directory = changes.pop("directory", None)
    section = SyncSection(backend=backend, directory=directory)
    return resolve_backend(section, **{**settings, **changes})  # type: ignore[arg-type]


def test_auto_takes_the_fastest_that_reaches_every_engine() -> None:
    assert resolve("auto", shared_weights=True, engine_kind="embedded") == "inprocess"
    assert resolve("auto") == "shm"
    assert resolve("auto", engine_kind="embedded") == "shm"
    assert resolve("auto", same_host=False) == "collective"
    assert resolve("auto", same_host=False, directory="/shared") == "disk"
    assert resolve("auto", cuda=True) == "collective"
    assert resolve("auto", cuda=True, same_host=False) == "collective"


@pytest.mark.parametrize(
    ("backend", "changes", "why"),
    [
        ("inprocess", {}, "do not share the trainer's weights.*'shm'"),
        ("shm", {"same_host": False}, "different hosts.*'collective'"),
        ("disk", {"same_host": False}, r"sync\.directory"),
        ("disk", {"shared_weights": True, "engine_kind": "embedded"}, "receives none.*'inprocess'"),
        ("ipc", {}, "CUDA devices and there are none"),
        ("ipc", {"cuda": True, "same_host": False}, "do not leave their host"),
        ("nccl", {}, "CUDA devices and there are none"),
        ("nccl", {"cuda": True, "engine_kind": "embedded"}, "vLLM's own"),
    ],
)
def test_what_cannot_work_is_said_with_what_would(backend: str, changes: dict, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        resolve(backend, **changes)


@pytest.mark.parametrize("backend", ["shm", "disk"])
def test_both_halves_fit(backend: str, tmp_path: Path) -> None:
    sender = make_sender(SyncSection(), backend=backend, directory=tmp_path)
    receiver = make_receiver(backend)
    receiver.connect(sender.connect(1)[0])
    assert_same(receiver.receive(sender.send(weights(), 1)), weights())
    receiver.close()
    sender.close()


def test_unknown_and_incomplete_backends() -> None:
    with pytest.raises(ConfigError, match="did you mean 'shm'"):
        make_sender(SyncSection(), backend="shn")
    with pytest.raises(SyncError, match="did you mean 'shm'"):
        make_receiver("shn")
    with pytest.raises(ConfigError, match=r"sync\.directory"):
        make_sender(SyncSection(), backend="disk")
    with pytest.raises(SyncError, match="received by vLLM itself"):
        make_receiver("nccl")
    with pytest.raises(SyncError, match="does not share the trainer's"):
        make_receiver("inprocess").receive(WeightTicket(backend="inprocess", version=1))


@NO_CUDA
@pytest.mark.parametrize("backend", ["ipc", "nccl"])
def test_gpu_backends_say_what_is_missing(backend: str) -> None:
    with pytest.raises(ConfigError, match="CUDA device here"):
        make_sender(SyncSection(), backend=backend)


@NO_CUDA
def test_the_gpu_receiver_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="CUDA device here"):
        make_receiver("ipc")


def test_the_digest_for_devices_sees_every_bit_and_its_place() -> None:
    tensor = torch.randn(1000)
    flipped = tensor.clone()
    flipped.view(torch.uint8)[1234] ^= 1
    swapped = tensor.clone()
    swapped[[2, 4]] = tensor[[4, 2]]
    swapped[[3, 5]] = tensor[[5, 3]]
    digests = {device_digest(t) for t in (tensor, flipped, swapped, tensor[:-1])}
    assert len(digests) == 4
    assert device_digest(tensor) == device_digest(tensor.clone())


def test_the_plugin_may_be_called_twice_and_without_vllm() -> None:
    """Fails if a second call in one process, or a vLLM without weight transfer, ends a server."""
    register()
    register()
    code = (
        "import sys; sys.modules['vllm'] = None\n"
        "from agentrl.sync.vllm.plugin import register\nregister()\n"
        "assert not {'torch', 'agentrl.sync.shm.shm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
