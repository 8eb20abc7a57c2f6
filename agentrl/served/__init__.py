"""Models behind servers, asked by judges, simulated users and writers: one client for all.

It stands below environments and rewards alike, and knows the contracts only.
"""

from agentrl.served.client import ServedModel
from agentrl.served.settings import ServedSettings, read_settings

__all__ = ["ServedModel", "ServedSettings", "read_settings"]
