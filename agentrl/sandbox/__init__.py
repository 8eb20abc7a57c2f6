"""The contract of a sandbox: a place where a model's code runs and cannot do harm.

A backend makes sandboxes, a sandbox runs commands. What the *program* does is a result
(`ExecResult.outcome`); what the *sandbox* does wrong is `SandboxError`, which is infrastructure
and is never shown to a model as program output. No limit has the default "unlimited".
"""

from agentrl.sandbox.backend import Prepare, SandboxBackend, SandboxSpec
from agentrl.sandbox.contract import MakeProtocol, Process, Sandbox, SandboxPort, Snapshot
from agentrl.sandbox.records import ExecResult, Isolation, Origin, Outcome, Probe, SandboxLimits
from agentrl.sandbox.tree import FileTree, TreeEntry

__all__ = [
    "ExecResult",
    "FileTree",
    "Isolation",
    "MakeProtocol",
    "Origin",
    "Outcome",
    "Prepare",
    "Probe",
    "Process",
    "Sandbox",
    "SandboxBackend",
    "SandboxLimits",
    "SandboxPort",
    "SandboxSpec",
    "Snapshot",
    "TreeEntry",
]
