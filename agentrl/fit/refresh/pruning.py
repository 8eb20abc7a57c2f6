"""Deletion of versions of a reward model that no process can need any more.

A version is kept if a checkpoint of the run names it, also one that a rollback moved aside, and if
it is one of the last two that the records name: the one that pays, and the one before it, which a
person may want to go back to. A run that resumes needs no other: between the version of its
checkpoint and the one that pays it replays stored rollouts, which were paid already.

Deleting begins after the record is written, so a kill leaves more than is kept, never less, and
the next refresh deletes it. A folder gets another name first: no version is there in part.
"""

from __future__ import annotations

import logging
from pathlib import Path

from agentrl.disk.checkpoint import list_checkpoints
from agentrl.fit.refresh.records import RefreshBook

logger = logging.getLogger(__name__)

_LAST = 2


def prune_versions(book: RefreshBook, run: Path) -> list[int]:
    """Delete the versions that are not kept; a disk that refuses is logged, and asked again later.

    Args:
        book: of the model.
        run: directory of the run, with its checkpoints.

    Returns:
        The versions that are gone, ascending.

    Raises:
        RunError: a record cannot be read.
    """
    last = sorted({record.version for record in book.records()})[-_LAST:]
    roots = [run / "checkpoints", *(run / "rolled-back").glob("*/checkpoints")]
    named = {found.state.rm_version for root in roots for found in list_checkpoints(root)}
    gone: list[int] = []
    try:
        book.sweep()
        for version in book.versions():
            if version not in named.union(last):
                book.remove_model(version)
                gone.append(version)
    except OSError as error:
        logger.warning("old versions of the reward model in %s stay: %s", book.models, error)
    return gone
