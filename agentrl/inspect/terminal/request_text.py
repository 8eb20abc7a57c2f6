"""The requests of an agent as lines of a terminal: a tree, two lines a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from agentrl.inspect.read.safe_terminal import visible

_DEEPEST = 8
"""Depth from which requests are indented no further."""


def request_lines(tree: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """The tree that `request_tree` gives, under a heading; nothing where no agent asked.

    Example of a line:
        `#2 main  412 + 31 tokens  row 1 turn 0  branch of #0: other tools were offered`
    """
    if not tree:
        return
    yield Text(f"-- requests of the agent ({len(tree)})", style="bold")
    for node in tree:
        indent = "   " * min(node["depth"], _DEEPEST)
        line = Text(f"   {indent}{'|- ' if node['depth'] else ''}#{node['number']} ")
        line.append_text(visible(node["kind"] or "request", "bold"))
        if node["refused"]:
            line.append("  refused: ", style="bold red").append_text(visible(node["refused"]))
        else:
            line.append(f"  {node['prompt_tokens']} + {node['sampled_tokens']} tokens", style="dim")
            trained = node["row"] is not None
            line.append(
                f"  row {node['row'] + 1} turn {node['turn']}" if trained else "  not trained"
            )
        if node["untrained"]:
            line.append(": ").append_text(visible(node["untrained"]))
        if node["branch"]:
            source = "" if node["behind"] is None else f" of #{node['behind']}"
            line.append(f"  branch{source}: ", style="yellow").append_text(visible(node["branch"]))
        if node["retries"]:
            line.append(f"  asked {node['retries']} more times", style="yellow")
        yield line
        texts = [" ".join(node[name].split()) for name in ("asked", "said")]
        if any(texts):
            yield visible(f"   {indent}      {texts[0]} -> {texts[1]}", "dim")
