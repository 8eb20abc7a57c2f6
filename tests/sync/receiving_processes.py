"""Processes that receive weights from a streaming sender, ordered about by lines."""

from __future__ import annotations

import json

from agentrl.sync.transfer import WeightSender
from tests.warm_processes import Program

RECEIVER = """
    import json, sys
    from tests.sync.sync_weights import assert_same, nudged, weights
    from agentrl.engine import WeightTicket
    from agentrl.sync.network_receiver import NetworkReceiver
    from agentrl.errors import SyncError
    receiver = NetworkReceiver()
    sent = weights(0)
    for line in sys.stdin:
        order, value = json.loads(line)
        try:
            if order == "connect":
                receiver.connect(value)
                print("connected", flush=True)
                continue
            ticket = WeightTicket(backend="collective", version=value[0], info=value[1])
            sent = weights(0)
            for seed in range(value[0] - 1):
                sent = nudged(sent, seed)
            print("receiving", flush=True)
            if order == "stop":
                next(receiver.receive(ticket))
                continue
            if order in ("freeze", "hang"):
                stream = receiver.receive(ticket)
                next(stream)
                import os, signal, time
                if order == "freeze":
                    os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(value[2])
                stream.close()
                print("woke", flush=True)
                continue
            if order == "die":
                stream = receiver.receive(ticket)
                next(stream)
                import os; os.kill(os.getpid(), 9)
            assert_same(receiver.receive(ticket), sent)
            print("same", flush=True)
        except SyncError as error:
            print("SyncError", error, flush=True)
"""


class Receivers:
    """Processes that receive."""

    def __init__(self, count: int) -> None:
        self.processes = [Program(RECEIVER, ()) for _ in range(count)]

    def order(self, index: int, order: str, value) -> None:
        stream = self.processes[index].stdin
        stream.write(json.dumps([order, value]) + "\n")
        stream.flush()

    def hear(self, index: int) -> str:
        stream = self.processes[index].stdout
        # gloo says on the standard output, too, that it has connected
        while (line := stream.readline()).startswith("[Gloo]"):
            pass
        return line.strip()

    def connect(self, sender: WeightSender, *indices: int) -> None:
        for index, info in zip(indices, sender.connect(len(indices)), strict=True):
            self.order(index, "connect", info)
            assert self.hear(index) == "connected"

    def receive(self, sender: WeightSender, version: int, *indices: int) -> None:
        ticket = sender.announce(version)
        for index in indices:
            self.order(index, "receive", [version, dict(ticket.info)])
            assert self.hear(index) == "receiving"

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
