"""The environment whose own reward no policy is paid by: it only counts words of the answer.

`quality` is the true score of `agentrl.testing.preferences`, good words less bad ones; `praise`
counts the words of praise, which are worth nothing.
"""

from __future__ import annotations

from typing import Any

from agentrl import AgentInstance, Observation, SandboxBackend, StepResult
from agentrl.errors import SandboxError
from agentrl.sandbox import Isolation, Probe
from agentrl.testing.preferences import GRAMMARS, answer_features

PRAISE = frozenset(word for phrase in GRAMMARS["A"].praise for word in phrase)
"""Words of praise; none of them has another role."""


def count_words(text: str) -> dict[str, float]:
    """Numbers `quality`, `praise` and `words` of an answer.

    Example:
        >>> count_words("Great question a clear stone.")
        {'quality': 1.0, 'praise': 2.0, 'words': 5.0}
    """
    words = text.lower().replace(".", " ").split()
    return {
        "quality": float(answer_features(text).quality),
        "praise": float(sum(word in PRAISE for word in words)),
        "words": float(len(words)),
    }


class HiddenTruth(AgentInstance):
    """One answer to one question."""

    async def reset(self, task: Any) -> Observation:
        """The question."""
        return Observation(content=str(task.prompt))

    async def step(self, action: Any) -> StepResult:
        """The true score as the reward, for the record alone, and the counts as `env/...`."""
        found = count_words(action.text)
        return StepResult(rewards=found["quality"], done=True, extra_logs=found)


class NoSandbox(SandboxBackend):
    """Makes no sandboxes: nothing is run."""

    name = "nothing"

    async def probe(self) -> Probe:
        """Always there."""
        return Probe(available=True, isolation=Isolation.NAMESPACES, detail="runs nothing")

    async def create(self, limits: Any, snapshot: Any = None) -> Any:
        """Refuses, for no code is run."""
        raise SandboxError("this backend makes no sandboxes")

    async def close(self) -> None:
        """Nothing to close."""
