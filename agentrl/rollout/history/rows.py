r"""The rows of a tree: every path to a last turn, each sampled token trained once.

    prompt - s1 - given - s2            row 0:  prompt | s1 given s2
               \- given' - s3           row 1:  prompt s1 given' | s3

What a path shares with one before it becomes the prompt of its row, so that training reads it once
(`agentrl.batch.prefix`) and no sampled token counts twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from agentrl.images import words
from agentrl.rollout.history.meaning import HeardMessage
from agentrl.rollout.history.tree import MessageTree, NodeKind, TreeNode, images_along
from agentrl.rollout.recorder import Recorder
from agentrl.types import ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlace:
    """The position of a trained turn in the rows of its rollout."""

    row: int
    """Index of its row."""
    turn: int
    """Position among the turns of that row."""


def record_rows(
    tree: MessageTree,
    *,
    trained: Callable[[TreeNode], bool],
    main_roots: Sequence[TreeNode],
    reward: float | None = None,
    places: dict[TreeNode, RowPlace] | None = None,
) -> Recorder | None:
    """Everything that is trained of a rollout; None where nothing is.

    Args:
        tree: of the rollout.
        trained: whether a sampled turn is trained on.
        main_roots: roots of the agent's own conversation; the path with its latest turn is the
            first row.
        reward: of the rollout, which stands at its latest turn that is trained: all turns came
            before it. None where turns have rewards of their own.
        places: is filled with the position of every turn that is trained.
    """
    recorder: Recorder | None = None
    order = {node: number for number, node in enumerate(tree.sampled)}
    latest = next((node for node in reversed(tree.sampled) if trained(node)), None)
    taken: set[TreeNode] = set()
    paths = [_until_trained(leaf.path(), trained) for root in tree.roots for leaf in _leaves(root)]
    mine = [path for path in paths if path and path[0] in main_roots]
    main = max(mine, key=lambda path: max(order.get(node, -1) for node in path), default=[])
    for path in [main, *(path for path in paths if path is not main)]:
        fresh = next((at for at, n in enumerate(path) if n not in taken and trained(n)), None)
        if fresh is None:
            continue
        prompt = list(chain.from_iterable(node.ids for node in path[:fresh]))
        first = path[fresh].said
        assert first is not None
        images = images_along(path[:fresh])
        if recorder is None:
            recorder = Recorder(prompt, temperature=first.temperature, images=images)
        else:
            recorder.start_row(prompt, temperature=first.temperature, images=images)
        for node in path[fresh:]:
            taken.add(node)
            if not trained(node):
                _append_context(recorder, node)
                continue
            whole = reward if node is latest else None
            own = node.reward if whole is None else whole
            place = _append_action(recorder, node, reward=own)
            if places is not None:
                places[node] = place
    return recorder


def _leaves(root: TreeNode) -> list[TreeNode]:
    leaves: list[TreeNode] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if not node.children:
            leaves.append(node)
        waiting.extend(reversed(node.children))
    return leaves


def _until_trained(path: Sequence[TreeNode], trained: Callable[[TreeNode], bool]) -> list[TreeNode]:
    """The path up to its last trained turn, with what came back for it unseen; may be empty."""
    end = 1 + max((at for at, node in enumerate(path) if trained(node)), default=-1)
    while 0 < end < len(path) and path[end].given is not None and not path[end].ids:
        end += 1
    return list(path[:end])


def _append_action(recorder: Recorder, node: TreeNode, *, reward: float | None) -> RowPlace:
    """Append a turn that is trained; where it stands."""
    said = node.said
    assert said is not None
    if said.temperature != recorder.temperature:
        # The trainer divides the logits of a row by one temperature.
        recorder.start_row(temperature=said.temperature)
    recorder.add_assistant(
        said.generation, text=said.text, tool_calls=said.calls, duration_s=said.duration_s
    )
    place = RowPlace(row=len(recorder.rows) - 1, turn=len(recorder.rows[-1].turns))
    if reward is not None:
        recorder.set_reward(reward)
    return place


def _append_context(recorder: Recorder, node: TreeNode) -> None:
    if node.given is not None:
        recorder.add_environment(
            node.ids,
            role="tool" if node.given.results else "user",
            text=node.given.text,
            tool_results=node.given.results,
            duration_s=node.given.duration_s,
        )
        return
    said = node.said
    calls = node.parent.calls if node.parent is not None else ()
    results = tuple(
        ToolResult(text=_seen(item), call_id=call.id if call else "", name=name)
        for item in node.heard
        if item.message.role == "tool"
        for call in [calls[item.answers] if item.answers is not None else None]
        for name in [call.name if call else item.message.name or ""]
    )
    recorder.add_environment(
        node.ids,
        role="tool" if results and node.kind is NodeKind.GIVEN else "user",
        text=said.text if said else "\n".join(map(_seen, node.heard)),
        tool_results=results,
        images=node.images,
    )


def _seen(item: HeardMessage) -> str:
    """Words of a message for readers."""
    return words(item.message.content, item.message.images)
