"""The owner and the lease of a container or pod, by which those that a crash left behind are found.

The first net is the attached stdin: it ends with its owner, and the container with it. This is the
second, for what never started, or whose daemon lost the news: labels say who made a container and
until when it may live, and `agentrl sandbox gc` removes those whose owner is dead or whose time is
over.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from agentrl.sandbox import SandboxLimits
from agentrl_sandboxes.host.identity import process_namespace, started

OWNER = "agentrl.owner"
LEASE = "agentrl.lease"
MARGIN_S = 300.0
"""How long past its lifetime a container is left alone: clocks differ, and ends take time."""


def labels(limits: SandboxLimits) -> dict[str, str]:
    """Labels of a container made now by this process."""
    return {OWNER: own_name(), LEASE: f"{time.time() + limits.lifetime_s + MARGIN_S:.0f}"}


def own_name() -> str:
    """This process, as no other process of any machine is called."""
    return ":".join(
        (_boot(), process_namespace(), *map(str, (os.getuid(), os.getpid(), _own_start())))
    )


def is_over(owned: Mapping[str, str], *, now: float) -> bool:
    """True if a container with these labels has lost its owner or has outlived its lease.

    A process of another machine, process namespace or (except for root) user may be hidden from us
    and alive; there only the lease counts. A container without readable labels is not judged.

    Args:
        owned: labels of the container.
        now: seconds since the epoch.
    """
    boot, namespace, *numbers = owned.get(OWNER, "").split(":")[:5] + [""] * 5
    if not all(number.isdecimal() for number in numbers[:3]):
        return False
    uid, pid, start = map(int, numbers[:3])
    visible = (boot, namespace) == (_boot(), process_namespace()) and os.getuid() in (0, uid)
    if visible and started(pid) != start:
        return True
    lease = owned.get(LEASE, "")
    return lease.isdecimal() and int(lease) < now


def _own_start() -> int:
    return started(os.getpid())


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
