"""The configuration that a supervisor inside a container is started with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.sandbox import SandboxLimits
from agentrl_sandboxes.host.enclosures import base_config
from agentrl_sandboxes.host.layout import BASE

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def guest_config(limits: SandboxLimits, image: Mapping[str, str]) -> dict[str, Any]:
    """The config of `guest.stage` for a supervisor that Docker has put in its place already.

    Args:
        limits: of the sandbox.
        image: environment variables of the image; programs get them too.
    """
    ours = {
        "HOME": f"{BASE}/home",
        "TMPDIR": f"{BASE}/tmp",
        "USER": "sandbox",
    }
    return base_config(limits) | {
        "env": {"PATH": PATH, "LANG": "C.UTF-8", **image, **ours},
        "other_processes": 0,
        "nested": "no",
        "places": ["/tmp", "/dev/shm", "/dev/mqueue"],
        "cgroup": True,
        # Within the share of the container: the supervisor has to be in time.
        "nice": 10,
    }
