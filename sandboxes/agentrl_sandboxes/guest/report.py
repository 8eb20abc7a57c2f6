"""The surroundings of a supervisor, as it reports them where its host has not made them."""

from __future__ import annotations

import os

from agentrl_sandboxes.guest.processes import read_lines


def surroundings() -> bytes:
    """Variables of the image, and the mount points that programs can write to, as JSON."""
    # Only this report needs it, and not every Python that we bring has it.
    import json

    lines = [line.split() for line in read_lines("/proc/self/mountinfo")]
    points = {_unescaped(fields[4]) for fields in lines if len(fields) > 5}
    found = {"variables": dict(os.environ), "writable": sorted(filter(_keeps_bytes, points))}
    return json.dumps(found).encode("ascii")


def _keeps_bytes(path: str) -> bool:
    """True for a file or directory that we may write to; not for devices, which cover others."""
    return os.access(path, os.W_OK) and (os.path.isdir(path) or os.path.isfile(path))


def _unescaped(path: str) -> str:
    """A path of mountinfo, where spaces and backslashes are octal numbers."""
    for code in ("040", "011", "012", "134"):
        path = path.replace("\\" + code, chr(int(code, 8)))
    return path
