"""The histories of one rollout of `ToolAgentLoop`, for environments that change them.

What happens is noted, and the tree grows out of the notes when the environment reads or changes the
conversation. While nothing was changed, the rows are those that the loop has recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentrl.errors import EnvError
from agentrl.rollout.feedback import Delta, result_messages
from agentrl.rollout.history.kinds import ConversationKind, branches_of, kinds_of
from agentrl.rollout.history.meaning import (
    answer_key,
    hear,
    thought_and_words,
    tools_key,
)
from agentrl.rollout.history.place import HistoryPlacer
from agentrl.rollout.history.requests import RequestLog
from agentrl.rollout.history.rows import RowPlace, record_rows
from agentrl.rollout.history.tree import (
    BranchReason,
    GivenTurn,
    MessageTree,
    NodeKind,
    SampledText,
    TreeNode,
    has_turns,
)
from agentrl.rollout.recorder import Recorder
from agentrl.tool import Tool
from agentrl.types import AgentRequest, Message, ToolResult

if TYPE_CHECKING:
    from agentrl.rollout.records import LoopParts, SampledTurn


class LoopHistory:
    """Notes a rollout, and makes a tree of it when that is asked for."""

    def __init__(
        self,
        parts: LoopParts,
        prompt_ids: tuple[int, ...],
        content: str | tuple[Message, ...],
        tools: Sequence[Tool],
    ) -> None:
        """Begin with the first prompt.

        Args:
            parts: chat format and encoder.
            prompt_ids: the first prompt.
            content: its messages.
            tools: offered in it.
        """
        self.changed = False
        """Whether a step gave another history, so that the rows are those of the tree."""
        self.returned = 0
        """Tokens that other histories appended beside the turns of the loop."""
        self._parts = parts
        self._prompt = prompt_ids, content, tuple(tools)
        self._notes: list[SampledTurn | Delta] = []
        self._grown = 0
        self._turns: list[SampledTurn] = []
        self._placer: HistoryPlacer | None = None
        self._node: TreeNode | None = None
        self._places: dict[TreeNode, RowPlace] = {}

    def add(self, note: SampledTurn | Delta) -> None:
        """Note a sampled turn, or what came back for it."""
        self._notes.append(note)

    def messages(self, results: Sequence[ToolResult]) -> tuple[Message, ...]:
        """The present conversation, with results that are not appended yet."""
        said: list[Message] = []
        for node in self._end().path():
            if node.said is not None:
                said.append(node.said.served)
            else:
                said.extend(item.message for item in node.heard)
        return (*said, *result_messages(results))

    async def change(
        self, history: tuple[Message, ...], tools: Sequence[Tool] | None, unseen: Delta | None
    ) -> TreeNode:
        """Go on behind another history.

        Args:
            history: all that the model sees next.
            tools: offered in its first prompt; None for those of the rollout's own.
            unseen: results of the present turn, which are kept for readers if the history does not
                continue that turn.

        Returns:
            The node behind which the next turn is sampled.

        Raises:
            EnvError: it says nothing.
            ChatError: the model's template refuses it.
        """
        turn, placer = self._end(), self._placed()
        heard = hear(history)
        if not heard or heard[-1].spoken:
            raise EnvError(
                "step: nothing but white space follows the assistant's last message in history; "
                "end it with a message of the user or a tool result"
            )
        before = placer.tree.appended
        offered = self._prompt[2] if tools is None else tools
        node = await placer.place(heard, offered, tools_key(offered))
        self.returned += placer.tree.appended - before
        self.changed = True
        if unseen is not None and turn not in node.upward():
            placer.tree.add(_given(unseen, turn))
        self._node = node
        return node

    def rows(self) -> Recorder:
        """The rows of the tree, the one with the rollout's own last turn first."""
        self._end()
        tree = self._placed().tree
        for node, turn in zip(tree.sampled, self._turns, strict=True):
            node.reward = turn.reward
        kinds = kinds_of(tree)
        recorder = record_rows(
            tree,
            trained=lambda node: node.kind is NodeKind.SAMPLED,
            main_roots=[root for root, kind in kinds.items() if kind is ConversationKind.MAIN],
            places=self._places,
        )
        assert recorder is not None  # a history is given by a step, which follows a turn
        return recorder

    def requests(self) -> tuple[AgentRequest, ...]:
        """The turns of the rollout as a tree for readers, in the rows that `rows` made."""
        tree = self._placed().tree
        return RequestLog().records(
            tree,
            kinds=kinds_of(tree),
            trained_kinds=frozenset(ConversationKind),
            places=self._places,
        )

    def report(self) -> dict[str, float]:
        """Numbers for the log: conversations of other agents, and branches by reason."""
        if not self.changed:
            return {}
        tree = self._placed().tree
        kinds = kinds_of(tree).values()
        side = sum(kind is not ConversationKind.MAIN for kind in kinds)
        branches = {f"history_{reason}": float(n) for reason, n in branches_of(tree).items()}
        return {**branches, **({"history_side": float(side)} if side else {})}

    # -- the tree ---------------------------------------------------------------------------

    def _placed(self) -> HistoryPlacer:
        if self._placer is None:
            parts = self._parts
            self._placer = HistoryPlacer(
                tree=MessageTree(), chat=parts.chat, long_texts=parts.long_texts
            )
        return self._placer

    def _end(self) -> TreeNode:
        """The node with which the present conversation ends, all notes in the tree."""
        tree = self._placed().tree
        if self._node is None:
            ids, content, tools = self._prompt
            if isinstance(content, str):
                content = (Message(role="user", content=content),)
            self._node = tree.add(
                TreeNode(kind=NodeKind.PROMPT, ids=ids, heard=hear(content), tools=tools_key(tools))
            )
        for note in self._notes[self._grown :]:
            if isinstance(note, Delta):
                self._node = tree.add(_given(note, self._node))
            else:
                self._turns.append(note)
                self._node = tree.add(self._sampled(note, self._node))
        self._grown = len(self._notes)
        return self._node

    def _sampled(self, turn: SampledTurn, parent: TreeNode) -> TreeNode:
        chat, generation = self._parts.chat, turn.generation
        body = generation.ids if turn.stop_id is None else generation.ids[:-1]
        body = (*chat.reply_prefix_ids, *body)
        _, words = thought_and_words(chat, self._parts.parser, body, turn.answered)
        served = Message(role="assistant", content=words, tool_calls=turn.answered)
        return TreeNode(
            kind=NodeKind.SAMPLED,
            ids=generation.ids,
            parent=parent,
            key=answer_key(words, turn.answered),
            calls=turn.answered,
            stop_id=turn.stop_id,
            delivered=True,
            reason=BranchReason.ASKED_AGAIN if has_turns(parent) else None,
            said=SampledText(
                generation=generation,
                text=turn.sampled_text,
                calls=turn.calls,
                served=served,
                thought=turn.thought,
                truncated=turn.truncated,
                duration_s=turn.duration_s,
                temperature=turn.temperature,
            ),
        )


def _given(delta: Delta, parent: TreeNode) -> TreeNode:
    said = parent.said
    before = () if said is None else (said.served,)
    heard = hear((*before, *delta.messages)) if delta.ids else ()
    return TreeNode(
        kind=NodeKind.GIVEN,
        ids=delta.ids,
        parent=parent,
        heard=tuple(item for item in heard if not item.spoken),
        given=GivenTurn(text=delta.text, results=delta.results, duration_s=delta.duration_s),
    )
