"""New pairs of a refresh and as many old ones, in one file.

Old are those of the fit that made the model, and those of earlier refreshes. Without them a few
steps on the newest rollouts alone would let the model forget what it was made for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.chat.conversation import encode_completion
from agentrl.chat.offered import schema_tool
from agentrl.errors import ChatError
from agentrl.fit.data.preferences.files import PairWriter
from agentrl.fit.data.preferences.from_runs import is_held_out
from agentrl.fit.data.preferences.load import load_pairs
from agentrl.fit.refresh.jobs import TRAIN_PAIRS, RefreshJob
from agentrl.fit.refresh.records import HELD_OUT_PAIRS, NEW_PAIRS
from agentrl.types import Completion, PreferencePair

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat


def write_mixed(job: RefreshJob, chat: ChatFormat) -> int:
    """Write the training pairs of a refresh, new : old = 1 : 1 where there are enough old ones.

    Args:
        job: names its pairs.
        chat: how the reward model reads pairs of messages.

    Returns:
        The number of old pairs.

    Raises:
        AgentrlError: a source that cannot be read.
    """
    folder = Path(job.folder)
    new, held = (load_pairs(str(folder / name)) for name in (NEW_PAIRS, HELD_OUT_PAIRS))
    old = list(_drawn(job, chat, held, len(new)))
    with PairWriter(folder / TRAIN_PAIRS) as writer:
        for pair in (*new, *old):
            writer.write(pair)
    return len(old)


def _drawn(
    job: RefreshJob, chat: ChatFormat, held: Sequence[PreferencePair], count: int
) -> Iterator[PreferencePair]:
    """Old pairs as tokens, none of which has a task or a prompt that is held out."""
    pool: list[PreferencePair] = [] if job.old is None else list(job.old.load())
    for file in job.earlier:
        pool += load_pairs(file)
    random.Random(f"{job.seed}/refresh/{job.step}").shuffle(pool)
    tasks = {pair.task_id for pair in held}
    prompts = {pair.prompt_ids for pair in held}
    for number, pair in enumerate(pool):
        if not count:
            return
        of_task = pair.task_id and is_held_out(pair.task_id, job.held_out, job.seed)
        if of_task or (pair.task_id and pair.task_id in tasks):
            continue
        try:
            found = as_tokens(pair, chat)
        except ChatError:  # the template refuses what an assistant cannot have said
            continue
        if found is None or found.prompt_ids in prompts:
            continue
        count -= 1
        yield replace(found, id=f"old/{number}/{pair.id}")


def as_tokens(pair: PreferencePair, chat: ChatFormat) -> PreferencePair | None:
    """The pair by its tokens; None where the template writes different prompts for both answers.

    Raises:
        ChatError: the template refuses it.
    """
    if pair.prompt_ids:
        return pair
    tools = [schema_tool(schema) for schema in pair.tools]
    both = [
        encode_completion(chat, pair.prompt, completion.messages, tools)
        for completion in (pair.chosen, pair.rejected)
    ]
    if both[0].prompt_ids != both[1].prompt_ids:
        return None
    chosen, rejected = (Completion(ids=found.ids, mask=found.mask) for found in both)
    return replace(pair, prompt=(), prompt_ids=both[0].prompt_ids, chosen=chosen, rejected=rejected)
