"""Sandboxes for agentrl: containers, bubblewrap, user namespaces, a plain process with limits."""

from agentrl_sandboxes.choose import BACKENDS, make_backend
from agentrl_sandboxes.docker import DockerBackend
from agentrl_sandboxes.host.child import ChildBackend, Launch
from agentrl_sandboxes.host.enclosures import BubblewrapBackend, ProcessBackend, UsernsBackend
from agentrl_sandboxes.host.supervised import Started, SupervisedBackend
from agentrl_sandboxes.pool.backend import PooledBackend

__all__ = [
    "BACKENDS",
    "BubblewrapBackend",
    "ChildBackend",
    "DockerBackend",
    "Launch",
    "PooledBackend",
    "ProcessBackend",
    "Started",
    "SupervisedBackend",
    "UsernsBackend",
    "make_backend",
]
