"""A process that user code forks ends where it leaves that code, with the status of a program."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from agentrl.plugins.own_threads import own_thread
from agentrl.plugins.user_code import user_call, user_code


def returns() -> None:
    print("it returned")


def fails() -> None:
    raise ValueError("it failed")


WAYS: list[tuple[Callable[[], Any], int, str]] = [
    (returns, 0, "it returned"),
    (sys.exit, 0, ""),
    (lambda: sys.exit(3), 3, ""),
    (lambda: sys.exit(-1), 255, ""),
    (lambda: sys.exit("words"), 1, "words"),
    (fails, 1, "ValueError: it failed"),
]


def forks(inside: Callable[[], Any]) -> int:
    child = os.fork()
    if not child:
        inside()
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("inside", "status", "written"), WAYS)
async def test_a_fork_has_the_status_of_a_program(
    inside: Callable[[], Any], status: int, written: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def held() -> int:
        return forks(inside)

    async def in_a_task() -> int:
        return await asyncio.create_task(held())

    def in_a_block() -> int:
        with user_code(limit_s=60):
            return forks(inside)

    found = [
        await own_thread(forks, inside),
        await user_call(held, limit_s=60),
        await user_call(in_a_task, limit_s=60),
        in_a_block(),
    ]
    assert found == [status] * 4
    out, err = capfd.readouterr()
    assert not written or (out + err).count(written) >= 4
