"""Run files: schema, loading, import strings. Imports nothing that runs."""

from agentrl.config.imports import load_module, resolve, resolve_callable
from agentrl.config.keys import leaves
from agentrl.config.load import dump_config, load_config, load_stored_config, parse_config
from agentrl.config.schema import RunConfig

__all__ = [
    "RunConfig",
    "dump_config",
    "leaves",
    "load_config",
    "load_module",
    "load_stored_config",
    "parse_config",
    "resolve",
    "resolve_callable",
]
