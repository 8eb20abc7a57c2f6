"""Looking after memory, processes and disk of all commands together, where the kernel does not."""

from __future__ import annotations

import time

from agentrl_sandboxes.guest import disk, held, reset, wire
from agentrl_sandboxes.guest.processes import descendants, memory_of, read_text, shared, threads

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all the rest of this takes to run
    from typing import Any

    from agentrl_sandboxes.guest.command import Command

OOM_FILES = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""Where a container sees how many of its processes the kernel has killed for memory: cgroup v2 and
v1."""

V1 = "/sys/fs/cgroup/memory/memory."
CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.stat"),
    (V1 + "usage_in_bytes", V1 + "limit_in_bytes", V1 + "stat"),
)
"""What a container holds, what it may hold, and what of it can be had back."""
RESERVE = 96 * 2**20
"""Bytes that are kept free in a cgroup: where nothing is left the kernel ends whom it likes.
Many processes together fill 2 GB/s."""


class LimitWatch:
    """Ends the largest command when all of them together exceed a limit."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.limits: dict[str, int] = config["limits"]
        self.base: str = config["base"]
        self.creator: int | None = config["program_uid"]
        # Otherwise System V objects cannot be separated from those of others.
        self.knows_ipc: bool = config["own_namespaces"] or self.creator is not None
        self.watch: bool = config["watch"]
        self.places: list[str] = [self.base, *config["places"]] if config["places"] else []
        # Also where there is a cgroup: one of version 1 counts buffers of TCP on their own.
        self.sockets = held.SocketWatch() if config["own_namespaces"] else None
        self.tmpfs: list[str] = [self.base, *config["places"]] if config["inodes"] else []
        self.most_inodes: int = config["inodes"]
        self.cgroup = next((f for f in CGROUP_FILES if config["cgroup"] and read_text(f[0])), None)
        self.oom_file = next((path for path in OOM_FILES if "oom_kill " in read_text(path)), "")
        # Files of our own cgroup, where the host has made one and left them open for us.
        self.group: dict[str, int] | None = config["group"]
        if self.group is not None:
            files = {name: f"/proc/self/fd/{fd}" for name, fd in self.group.items()}
            self.cgroup = (files["held"], files["most"], files["kinds"])
            self.oom_file = files["oom"]
        self.next_look = 0.0
        self.next_disk_look = 0.0
        self.disk_seen = 0
        self.files_seen = 0

    def look(self, now: float, commands: list[Command]) -> None:
        """Check memory, processes and disk; end what is too large."""
        running = [c for c in commands if not (c.killed_at or c.gone_at)]
        # First, because it is soon done and may be urgent. It knows what belongs to no process as
        # well, as what waits in sockets and pipes, but not whose it is.
        room = self.cgroup_left()
        if room < 0 and not any(c.killed_at and not c.gone_at for c in commands):
            for command in running:
                command.kill(wire.OOM)
            self.next_look = now + 0.01
            return
        trees = {c.ident: descendants(c.leader) for c in running}
        tasks = {ident: sum(map(threads, tree)) for ident, tree in trees.items()}
        # What the kernel lets a program have on top of its limit, for leaders that come and go.
        spare = sum(1 + command.spare_leaders for command in commands)
        if sum(map(len, trees.values())) > self.limits["processes"] or (
            sum(tasks.values()) > self.limits["processes"] + spare
        ):
            # Before its memory is counted, because a bomb grows meanwhile.
            max(running, key=lambda c: tasks[c.ident]).kill(wire.PROCESSES)
            self.next_look = now
            return
        most = self.limits["memory"]
        used = {c.ident: memory_of(trees[c.ident], most) for c in running}
        loose = self.loose_bytes([pid for tree in trees.values() for pid in tree])
        left = most - sum(used.values()) - loose
        if running and left < 0:
            max(running, key=lambda c: used[c.ident]).kill(wire.OOM)
            # What it has left would outlive it.
            self.remove_ipc()
        self.look_at_files(running)
        # One process fills memory at some 4 GB/s at most, so a look can wait until it could have
        # run out; many together are faster.
        gap = min(0.25, max(0.01, min(left / 4e9, room / 2e10)))
        if self.watch:
            # A fork bomb makes some hundred processes in this time.
            gap = min(gap, 0.015)
        if (self.watch or self.places) and now >= self.next_disk_look:
            spent = self.look_at_disk(running)
            self.next_disk_look = now + 10 * spent + (0.1 if self.watch else 0.0)
        self.next_look = now + gap

    def loose_bytes(self, pids: list[int]) -> int:
        """Memory that no process is charged for: see `held`."""
        total = 0
        if self.knows_ipc:
            segments, rest = held.ipc_bytes(self.creator)
            # What is attached has been counted with the processes.
            total += rest + (max(0, segments - sum(map(shared, pids))) if segments else 0)
        if self.sockets is not None:
            total += self.sockets.bytes_held(self.limits["memory"] // 8)
        return total

    def remove_ipc(self) -> None:
        """Delete the programs' objects of System V, if there are any."""
        if self.knows_ipc and any(held.ipc_bytes(self.creator)):
            for kind in reset.IPC:
                reset.remove_ipc(kind, self.creator)

    def look_at_files(self, running: list[Command]) -> None:
        """End commands that make files where there are too many; see `look_at_disk`."""
        files = sum(map(held.inodes, self.tmpfs))
        for command in running if files > max(self.most_inodes, self.files_seen) else ():
            command.kill(wire.DISK)
        self.files_seen = files

    def look_at_disk(self, running: list[Command]) -> float:
        """End commands that write to a disk that is full; one that frees it may go on.

        Returns how long looking took in seconds, because it should not be done all the time.
        """
        start = time.monotonic()
        used = disk.tree_bytes(self.base) if self.watch else disk.mounted_bytes(self.places)
        for command in running if used > max(self.limits["disk"], self.disk_seen) else ():
            command.kill(wire.DISK)
        self.disk_seen = used
        return time.monotonic() - start

    def cgroup_left(self) -> int:
        """Bytes until our cgroup is so full that the kernel might end us, not a command.

        Where the cgroup is a container's, `RESERVE` above what programs may have together with all
        their file systems; else the same, less what of the disk is not used.
        """
        if self.cgroup is None:
            return self.limits["memory"]
        used, most = map(read_text, self.cgroup[:2])
        if not (used.strip().isdigit() and most.strip().isdigit()):
            return self.limits["memory"]
        left = int(most) - int(used) - RESERVE
        if self.group is not None:
            # Else what the disk does not hold memory could.
            left -= max(0, self.limits["disk"] - disk.mounted_bytes([self.base]))
        if left < 0:
            # Pages of files that can be read again; for the hierarchy in the words of v1.
            cached = ("inactive_file ", "active_file ")
            kinds = read_text(self.cgroup[2]).split("\n")
            found = (line.split() for line in kinds if line.startswith(cached))
            left += sum(int(size) for _, size in found)
        return left

    def oom_kills(self) -> int:
        """The number of processes of our cgroup that the kernel has killed for memory so far."""
        for line in read_text(self.oom_file).splitlines() if self.oom_file else ():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0

    def judge(self, command: Command) -> None:
        """Distinguish a command that the kernel killed for memory from one that killed itself.

        A shell whose child was killed exits with 137.
        """
        killed = command.end() & 0x7F == 9 or command.end() == 137 << 8
        if killed and command.reason == wire.ENDED and self.oom_kills() > command.oom_kills:
            command.reason = wire.OOM
