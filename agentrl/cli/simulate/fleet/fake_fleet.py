"""Starts fake servers in other processes, for as long as they are used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from agentrl.cli.simulate.fleet.fake_servers import FakeTurn
from agentrl.machine.processes.child import ChildProcess

_A_CHILD = 8192
"""Conversations that one process of fake servers answers."""
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class FakeFleet:
    """Children that are fake servers."""

    children: Sequence[ChildProcess]
    """Processes of the servers."""
    urls: Sequence[str]
    """Addresses of the servers."""

    def counts(self) -> tuple[int, float]:
        """Turns that were answered, and processor seconds."""
        heads = [child.ask({}, timeout_s=_START_S).head for child in self.children]
        return sum(head["turns"] for head in heads), sum(head["cpu_s"] for head in heads)


@contextlib.contextmanager
def fake_fleet(servers: int, turn: FakeTurn, *, conversations: int) -> Iterator[FakeFleet]:
    """Start fake servers in as few processes as can answer for them, and end them.

    Args:
        servers: so many.
        turn: sampled by each of them, always.
        conversations: at once, over all servers.
    """
    count = min(servers, -(-conversations // _A_CHILD))
    with contextlib.ExitStack() as stack:
        children: list[ChildProcess] = []
        ports: list[int] = []
        for index in range(count):
            child = ChildProcess("agentrl.cli.simulate.fleet.fake_servers:serve")
            stack.callback(child.close)
            children.append(child)
            asked = {"servers": len(range(index, servers, count)), "turn": asdict(turn)}
            ports += child.ask(asked, timeout_s=_START_S).head["ports"]
        yield FakeFleet(children, [f"http://127.0.0.1:{port}" for port in ports])
