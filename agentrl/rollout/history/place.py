"""Puts a history into the tree of its rollout: matched as far as it is known, the rest appended.

Ids that were sampled are put back wherever a history repeats them. Only what is new is encoded, by
`ChatFormat.turn_delta`, as if it had been appended turn by turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from agentrl.chat.conversation import spoken_turn
from agentrl.errors import ChatError
from agentrl.rollout.history.meaning import HeardMessage
from agentrl.rollout.history.tree import (
    BranchReason,
    MessageTree,
    NodeKind,
    PathMatch,
    TreeNode,
)
from agentrl.rollout.long_texts import IMAGE_WORK, LongTexts
from agentrl.tool import Tool
from agentrl.types import ImageSpan, Message

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat

_MESSAGE_WORK = 16
"""Characters whose encoding takes as long as what a message takes without its text."""
_YIELD_EVERY = 16
"""Messages after which others have their turn on the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPlacer:
    """Places the histories of one rollout."""

    tree: MessageTree
    """All messages of the rollout."""
    chat: ChatFormat
    """Writes what is new."""
    long_texts: LongTexts
    """Encodes long texts beside the event loop."""

    async def place(
        self, heard: Sequence[HeardMessage], offered: Sequence[Tool], tools: str
    ) -> TreeNode:
        """The node behind which the next turn is sampled, with everything before it in the tree.

        Turns of the policy on its path count as delivered: whoever repeats them has read them.

        Args:
            heard: the history; ends with a message that is not the assistant's.
            offered: tools of its first prompt.
            tools: their meaning, as `tools_key` gives it.

        Raises:
            ChatError: the model's template refuses it.
        """
        self.tree.begin()
        found = self.tree.match(heard, tools)
        reason = self.tree.reason(heard, tools, found)
        if found is None:
            found = await self._new_root(heard, offered, tools, reason)
            reason = None
        node, at = found.node, found.known
        turn = sum(one.spoken for one in node.upward())
        try:
            while at < len(heard):
                end = at + 1
                if not heard[at].spoken:
                    end = next((n for n in range(at, len(heard)) if heard[n].spoken), len(heard))
                behind = heard[end : end + 1]
                node = await self._append(node, heard[at:end], behind, offered, reason, turn=turn)
                turn += node.spoken
                at, reason = end, None
                if end % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
        except ChatError:
            # A message of the assistant that its format cannot write behind a turn.
            ids = await self.rendered(heard, offered)
            node = self.tree.add(
                TreeNode(
                    kind=NodeKind.PROMPT,
                    ids=ids,
                    heard=tuple(heard),
                    tools=tools,
                    reason=BranchReason.EDITED,
                    images=await self._images(ids, heard),
                )
            )
        for one in node.upward():
            if one.delivered:
                break  # all before it are, since the agent sent them with the request for it
            one.delivered = one.kind is NodeKind.SAMPLED
        self.tree.placed(node, heard)
        return node

    async def rendered(
        self, heard: Sequence[HeardMessage], tools: Sequence[Tool]
    ) -> tuple[int, ...]:
        """Ids of a first prompt.

        Raises:
            ChatError: the model's template refuses it.
        """
        messages = [item.message for item in heard]
        characters = _work(heard) + IMAGE_WORK * len(tools)
        return await self.long_texts.run(characters, self.chat.render_prompt, messages, tools)

    async def _new_root(
        self,
        heard: Sequence[HeardMessage],
        offered: Sequence[Tool],
        tools: str,
        reason: BranchReason | None,
    ) -> PathMatch:
        """A first prompt: everything before the first turn that the policy has sampled."""
        known = (at for at, item in enumerate(heard) if item.spoken and self.tree.sampled_as(item))
        end = next(known, len(heard)) or len(heard)
        ids = await self.rendered(heard[:end], offered)
        node = TreeNode(
            kind=NodeKind.PROMPT,
            ids=ids,
            heard=tuple(heard[:end]),
            tools=tools,
            reason=reason,
            images=await self._images(ids, heard[:end]),
        )
        return PathMatch(node=self.tree.add(node), known=end)

    async def _append(
        self,
        node: TreeNode,
        heard: Sequence[HeardMessage],
        following: Sequence[HeardMessage],
        tools: Sequence[Tool],
        reason: BranchReason | None,
        *,
        turn: int,
    ) -> TreeNode:
        """Append one turn of the assistant, or what is given between two of them."""
        if heard[0].spoken:
            said = await self._context(node, heard[0], following, tools, reason, turn=turn)
            return self.tree.add(said)
        messages = [_answering(item, node) for item in heard]
        ids = await self.long_texts.run(
            _work(heard),
            self.chat.turn_delta,
            messages,
            ended=node.stop_id is not None,
            stop_id=node.stop_id,
        )
        images = await self._images(ids, heard, turn=turn)
        return self.tree.add(
            TreeNode(
                kind=NodeKind.GIVEN,
                ids=tuple(ids),
                parent=node,
                heard=tuple(heard),
                reason=reason,
                images=images,
            )
        )

    async def _images(
        self, ids: Sequence[int], heard: Sequence[HeardMessage], *, turn: int = 0
    ) -> tuple[ImageSpan, ...]:
        messages = [item.message for item in heard]
        # An image that is no longer remembered is read again.
        work = IMAGE_WORK * sum(len(message.images) for message in messages)
        return await self.long_texts.run(work, self.chat.image_spans, ids, messages, turn=turn)

    async def _context(
        self,
        node: TreeNode,
        item: HeardMessage,
        following: Sequence[HeardMessage],
        tools: Sequence[Tool],
        reason: BranchReason | None,
        *,
        turn: int,
    ) -> TreeNode:
        """A turn that was not sampled here: with its own ids if it was sampled elsewhere."""
        sampled = self.tree.sampled_as(item)
        if sampled is not None:
            sampled.delivered = True
            ids, calls, stop_id = sampled.ids, sampled.calls, sampled.stop_id
        else:
            chat = self.chat
            stop_id = chat.stop_before([one.message for one in following])
            write = partial(spoken_turn, chat, item.message, tools, turn, stop_id=stop_id)
            said = await self.long_texts.run(_work([item]), write)
            ids = said.ids
            wanted = len(item.message.tool_calls)
            calls = said.calls[len(said.calls) - wanted :]
            stop_id = said.ids[-1] if said.ended else None
        return TreeNode(
            kind=NodeKind.CONTEXT,
            ids=ids,
            parent=node,
            heard=(item,),
            key=item.key,
            calls=calls,
            stop_id=stop_id,
            reason=reason,
        )


def _work(heard: Sequence[HeardMessage]) -> int:
    """Characters to encode. An image counts as a long text, and so does a call, whose arguments
    may be of any length; many short messages are long together."""
    return sum(
        _MESSAGE_WORK
        + len(item.message.content)
        + IMAGE_WORK * (len(item.message.images) + len(item.message.tool_calls))
        for item in heard
    )


def _answering(item: HeardMessage, node: TreeNode) -> Message:
    """A message behind a turn; results carry id and name of the call as it was sampled."""
    message = item.message
    if message.role != "tool" or item.answers is None or item.answers >= len(node.calls):
        return message
    call = node.calls[item.answers]
    return replace(message, tool_call_id=call.id, name=call.name or None)
