"""Functions that tests run in children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

from agentrl.machine.processes.child_main import ChildChannel, limit, limit_cpu


def echo(channel: ChildChannel) -> None:
    """Sends back each frame, and what it is asked to do before."""
    channel.end_with_parent()
    while True:
        head, body = channel.receive()
        if "sleep_s" in head:
            time.sleep(head["sleep_s"])
        if "print" in head:
            print(head["print"], flush=True)
            print(head["print"], file=sys.stderr, flush=True)
        if "exit" in head:
            os._exit(head["exit"])
        channel.send({**head, "pid": os.getpid()}, body)


def takes_memory(channel: ChildChannel) -> None:
    """Wants more than it may."""
    limit(data_bytes=2**28)
    try:
        bytearray(2**30)
    except MemoryError:
        channel.send({"refused": True})


def computes(channel: ChildChannel) -> None:
    """Computes for ever, with a second to do so."""
    limit_cpu(1)
    while True:
        pass


def raises(channel: ChildChannel) -> None:
    """Fails."""
    raise ValueError("on purpose")


def lies_about_sizes(channel: ChildChannel) -> None:
    """Announces a frame that no memory holds."""
    channel._link.sendall(b"\0\0\0\2" + b"\1" * 8)
    channel.receive()


def answers_once_then_lies(channel: ChildChannel) -> None:
    """Replies to one request, and to the next with no frame."""
    channel.receive()
    channel.send({"score": 0.0})
    channel.receive()
    lies_about_sizes(channel)


def leaves_processes(channel: ChildChannel) -> None:
    """Starts processes that no group or session holds, one of which ignores SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    left = [subprocess.Popen(["sleep", "4321"], start_new_session=True).pid for _ in range(2)]
    channel.send({"left": left})
    channel.receive()


def leaves_a_thread(channel: ChildChannel) -> None:
    """Ends in the way it is asked to, beside a thread that does not."""
    threading.Thread(target=time.sleep, args=(4321,)).start()
    channel.send({"pid": os.getpid()})
    if "raise" in channel.receive().head:
        raise ValueError("on purpose")


def reads_in_little_room(channel: ChildChannel) -> None:
    """May take less than it is sent."""
    channel.end_with_parent()
    limit(address_bytes=2**29)
    channel.send({})
    channel.receive()


def forks_and_exits(channel: ChildChannel) -> None:
    """Leaves a copy of itself, which holds the channel open."""
    if os.fork() == 0:
        channel.send({"left": os.getpid()})
        signal.pause()
    time.sleep(0.2)
    os._exit(3)


def describes_itself(channel: ChildChannel) -> None:
    """Sends what it has of its parent."""
    channel.send({"path": sys.path, "hash": hash("text")})


class PowerHost:
    """Computes without a bound of its own."""

    OPERATIONS = ("power",)

    def power(self, base: int, exponent: int) -> int:
        return base**exponent
