"""Real processes to be the ranks of a trainer, started once and asked many times."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from agentrl.train.backends.ranks import Meeting, Ranks
from tests.warm_processes import warm_context

LIMIT_S = 120.0
THREADS = 40
"""Threads of a rank from which on the crew is made anew. Libraries keep the process groups of
sharded models for ever, and each has a thread that looks for messages a hundred times a second."""


def _serve(pipe: Any) -> None:
    torch.set_num_threads(1)
    # DeepSpeed imports it, wherever it is installed, for a tuner that nothing here uses.
    sys.modules["mlflow"] = None  # type: ignore[assignment]
    while True:
        work, args = pipe.recv()
        try:
            answer = None, work(*args)
        except Exception as error:  # shown by whoever asked
            answer = f"{error!r}\n{traceback.format_exc()}", None
        pipe.send((*answer, sum(1 for _ in Path("/proc/self/task").iterdir())))
        del answer


def joined(address: str, rank: int, world_size: int, timeout_s: float = LIMIT_S) -> Ranks:
    return Ranks(
        address,
        rank=rank,
        world_size=world_size,
        device=torch.device("cpu"),
        join_timeout_s=min(timeout_s, LIMIT_S),
        timeout_s=timeout_s,
    )


class Crew:
    """`size` processes; `run` asks the first few of them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._start()

    def _start(self) -> None:
        self._threads = 0
        context = warm_context()
        pipes = [context.Pipe() for _ in range(self._size)]
        self._pipes = [ours for ours, _ in pipes]
        self.processes = [
            context.Process(target=_serve, args=(theirs,), daemon=True) for _, theirs in pipes
        ]
        for process in self.processes:
            process.start()
        for _, theirs in pipes:
            theirs.close()

    def run(self, world_size: int, work: Callable[..., Any], *args: Any) -> list[Any]:
        """`work(address, rank, world_size, *args)` on every rank; the results by rank."""
        meeting = Meeting(join_timeout_s=LIMIT_S)
        for rank in range(world_size):
            self.ask(rank, work, meeting.address, rank, world_size, *args)
        try:
            answers = [self.answer(rank) for rank in range(world_size)]
        except BaseException:
            # Whatever the others still wait for must not become the failure of the next test.
            self.close()
            self._start()
            raise
        if self._threads > THREADS:
            self.close()
            self._start()
        return answers

    def ask(self, rank: int, work: Callable[..., Any], *args: Any) -> None:
        self._pipes[rank].send((work, args))

    def answer(self, rank: int) -> Any:
        assert self._pipes[rank].poll(LIMIT_S), f"rank {rank} does not answer"
        failure, value, threads = self._pipes[rank].recv()
        self._threads = max(self._threads, threads)
        assert failure is None, f"rank {rank}: {failure}"
        return value

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
