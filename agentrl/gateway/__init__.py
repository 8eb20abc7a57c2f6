"""Trains any agent: serves the policy over the wires that agents speak, and records its turns."""

from agentrl.gateway.agent import FunctionAgent, load_env
from agentrl.gateway.app import Gateway
from agentrl.gateway.clients import bound_client
from agentrl.gateway.listen import http_handler, listening
from agentrl.gateway.outside import OutsideAgent
from agentrl.gateway.program import ProgramAgent
from agentrl.gateway.records import MODEL
from agentrl.gateway.session import GatewaySession

__all__ = [
    "MODEL",
    "FunctionAgent",
    "Gateway",
    "GatewaySession",
    "OutsideAgent",
    "ProgramAgent",
    "bound_client",
    "http_handler",
    "listening",
    "load_env",
]
