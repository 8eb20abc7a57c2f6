"""The border between an agent program and the environment that grades it.

An environment was written for a loop that shows it every turn; a program is given a text and a
folder, and leaves files and last words. For each environment of ours this says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from agentrl.env import AgentInstance


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Texts and places by which an environment and a program meet."""

    folder: str = ""
    """Folder that the program starts in, below the work directory."""
    answer: str = ""
    """File in `folder` whose text is what the environment judges; empty takes the last words of
    the model."""
    instruction: str = ""
    """Behind the environment's own text."""
    system: bool = True
    """Whether the environment's system message is part of the text: it may speak of tools that the
    loop has and the program has not."""
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Arguments that the environment takes where the config sets no others."""


def _template(name: str) -> str:
    return files("agentrl_envs.harness").joinpath("templates", name).read_text(encoding="utf-8")


_FUNCTION = (
    "Write the function into the file solution.py in the current directory. It is tested there; "
    "nothing else counts."
)
HANDOVERS: Mapping[str, Handover] = {
    "agentrl_envs.swe.harbor:HarborTask": Handover(folder="repo", system=False),
    "agentrl_envs.swe.env:RepairTask": Handover(
        folder="repo", system=False, args={"task_prompt": _template("repair.jinja")}
    ),
    "agentrl_envs.code.env:CodeTask": Handover(answer="solution.py", instruction=_FUNCTION),
}
"""By class, subclasses included; any other environment is given the last words of the model."""


def handover_of(kind: type[AgentInstance]) -> Handover:
    """The handover of an environment class."""
    for one in kind.__mro__:
        if found := HANDOVERS.get(f"{one.__module__}:{one.__qualname__}"):
            return found
    return Handover()
