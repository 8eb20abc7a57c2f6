"""The boundary to code of users: whatever it raises is an error of theirs, and ends no process."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from contextlib import contextmanager


class UserCodeExit(Exception):
    """User code raised what is no `Exception`: `exit()`, or the panic of an extension in Rust."""


@contextmanager
def user_code(*passing: type[BaseException]) -> Iterator[None]:
    """Turn what is raised in the block, and is no `Exception`, into `UserCodeExit`.

    An event loop ends at `SystemExit`, without a message and with status 0 for `exit()`. So every
    call of user code stands in such a block, inside of what records its errors. Cancellation goes
    through, and so do `KeyboardInterrupt`, by which a user ends a command, and `passing`.
    """
    try:
        yield
    except (Exception, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, *passing):
        raise
    except BaseException as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        ended = UserCodeExit(
            f"{at.name} raised {error!r} at {at.filename}:{at.lineno}, which ends a whole program; "
            "raise an Exception instead"
        )
        raise ended.with_traceback(error.__traceback__) from None
