"""Run files: schema, loading, import strings. Imports nothing that runs."""

from agentrl.config.keys import leaves
from agentrl.config.load import dump_config, load_config, parse_config
from agentrl.config.schema import RunConfig
from agentrl.plugins.imports import load_module, resolve, resolve_callable

__all__ = [
    "RunConfig",
    "dump_config",
    "leaves",
    "load_config",
    "load_module",
    "parse_config",
    "resolve",
    "resolve_callable",
]
