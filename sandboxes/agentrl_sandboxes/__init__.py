"""Sandboxes for agentrl: containers, bubblewrap, user namespaces, a process with limits, pods."""

from agentrl_sandboxes.choose import BACKENDS, make_backend
from agentrl_sandboxes.docker import DockerBackend
from agentrl_sandboxes.host.child import ChildBackend, Launch
from agentrl_sandboxes.host.enclosures import BubblewrapBackend, ProcessBackend, UsernsBackend
from agentrl_sandboxes.host.supervised import Started, SupervisedBackend
from agentrl_sandboxes.kubernetes import KubernetesBackend
from agentrl_sandboxes.pool.backend import PooledBackend

__all__ = [
    "BACKENDS",
    "BubblewrapBackend",
    "ChildBackend",
    "DockerBackend",
    "KubernetesBackend",
    "Launch",
    "PooledBackend",
    "ProcessBackend",
    "Started",
    "SupervisedBackend",
    "UsernsBackend",
    "make_backend",
]
