"""The wires that are spoken: how each reads a request, and writes answers, events and errors."""

from agentrl.gateway.wires.chat import ChatWire
from agentrl.gateway.wires.messages import MessagesWire
from agentrl.gateway.wires.responses import ResponsesWire
from agentrl.gateway.wires.wire import Wire

__all__ = ["ChatWire", "MessagesWire", "ResponsesWire", "Wire"]
