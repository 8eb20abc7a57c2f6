"""The final change of an agent, as a diff for readers. Nothing is graded from it.

The text is the model's, so what is compared and what is shown have bounds: comparing two files of
the same few lines over and over takes minutes.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentrl_envs.swe.changes import Changes
from agentrl_envs.swe.patches import make_patch
from agentrl_envs.swe.trees import TreeFile

_MAX_PAIRS = 10**6
"""Lines of one side times lines of the other, without what both begin and end with."""
_MAX_CHARACTERS = 200_000


def diff_for_readers(changes: Changes, before: Mapping[str, bytes]) -> str:
    """The change as a unified diff; files that are too large or no text are named in a line.

    Args:
        changes: what counts of what the agent left.
        before: the tree that it was given.
    """
    parts = []
    for path in sorted({*changes.written, *changes.deleted}):
        old, new = before.get(path), changes.written.get(path)
        runs = changes.executable.get(path)
        if _pairs(old or b"", new or b"") > _MAX_PAIRS or not _is_text(old):
            sizes = f"{len(old or b'')} bytes before, {len(new or b'')} after"
            parts.append(f"# {path}: {sizes}, not compared\n")
            continue
        # Only a bit that changed is shown.
        pairs = ((old, runs is False), (new, runs is True))
        sides = [
            {} if it is None else {path: TreeFile(data=it, executable=bit)} for it, bit in pairs
        ]
        parts.append(make_patch(sides[0], sides[1]))
    text = "".join(parts)
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[:_MAX_CHARACTERS]}\n# cut off, of {len(text)} characters\n"
    return text


def _pairs(old: bytes, new: bytes) -> int:
    """The number of line pairs to be compared."""
    left, right = old.split(b"\n"), new.split(b"\n")
    most = min(len(left), len(right))
    head = next((n for n in range(most) if left[n] != right[n]), most)
    most -= head
    tail = next((n for n in range(most) if left[-1 - n] != right[-1 - n]), most)
    return (len(left) - head - tail) * (len(right) - head - tail)


def _is_text(data: bytes | None) -> bool:
    try:
        return data is None or data.decode("utf-8") is not None
    except UnicodeDecodeError:
        return False
