"""Main memory that is free; the watchdog asks for it without importing what the checks need."""

from __future__ import annotations

from pathlib import Path


def available_bytes() -> int | None:
    """Main memory that a new process may take, within the limit of the container; None unknown."""
    fields: dict[str, int] = {}
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) * 1024
    found = fields["MemAvailable"]
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        cache = _cgroup_cache()
    except (OSError, ValueError):
        return found
    return found if limit == "max" else min(found, int(limit) - used + cache)


def _cgroup_cache() -> int:
    """Files kept in memory, which count as used and are given up for the asking."""
    for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            return int(value)
    return 0
