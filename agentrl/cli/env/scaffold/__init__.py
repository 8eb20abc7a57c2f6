"""The files that `agentrl env new` writes."""

from agentrl.cli.env.scaffold.files import KINDS, TASKS_FILE, class_of, scaffold

__all__ = ["KINDS", "TASKS_FILE", "class_of", "scaffold"]
