"""The Docker backend: hardened containers, a supervisor inside, leases against what crashes leave.

`backend` makes containers from `hardening` over `client`; `attach` is the way in; `sweep` finds
what was left behind; `failures` says what went wrong.
"""

from agentrl_sandboxes.docker.backend import DockerBackend, InContainer

__all__ = ["DockerBackend", "InContainer"]
