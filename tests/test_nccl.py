"""NCCL groups; what needs GPUs is in `tests/gpu`."""

from __future__ import annotations

import os

import pytest

from agentrl.nccl import blocking_waits

NAME = "TORCH_NCCL_BLOCKING_WAIT"


@pytest.mark.parametrize("before", [None, "0"])
def test_the_environment_is_as_it_was(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if other groups of this process, such as FSDP2's, would wait on the processor, too."""
    if before is None:
        monkeypatch.delenv(NAME, raising=False)
    else:
        monkeypatch.setenv(NAME, before)
    with blocking_waits():
        assert os.environ[NAME] == "1"
    assert os.environ.get(NAME) == before
