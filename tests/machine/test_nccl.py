"""NCCL groups; what needs GPUs is in `tests/gpu`."""

from __future__ import annotations

import os
import threading
import time

import pytest

from agentrl.machine.nccl import blocking_waits

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


def test_two_threads_leave_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the second puts back the value of the first, or the first takes it away."""
    monkeypatch.delenv(NAME, raising=False)
    inside = threading.Event()
    seen: list[str | None] = []

    def first() -> None:
        with blocking_waits():
            inside.set()
            time.sleep(0.2)

    def second() -> None:
        inside.wait()
        with blocking_waits():
            time.sleep(0.4)
            seen.append(os.environ.get(NAME))

    threads = [threading.Thread(target=run) for run in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["1"]
    assert os.environ.get(NAME) is None
