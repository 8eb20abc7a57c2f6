"""Tools for environments: `agentrl_tools.calculator:calculator`, `agentrl_tools.python:python`."""
