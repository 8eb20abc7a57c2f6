"""The frames that host and supervisor exchange over the supervisor's stdin and stdout.

A frame is `HEAD` and a body. Requests are marshalled (the guest trusts the host); answers are
packed by hand, because the host must not unmarshal what comes out of a sandbox.
"""

from __future__ import annotations

import struct

HEAD = struct.Struct(">IBI")
"""Length of the body in bytes, kind of the frame, id of the request."""

CONFIG, EXEC, CANCEL, READ, WRITE, PACK, UNPACK = range(7)
"""Kinds sent by the host. `CONFIG` is the first frame and carries the modules to run."""
READY, RESULT, DATA, FAILED = range(16, 20)
"""Kinds sent by the guest: started; a command is over (`DONE`); bytes; `ERROR` and a message."""

DONE = struct.Struct(">BidQQ4I")
"""Reason, wait status, wall seconds, bytes missing from stdout and stderr, and the lengths of the
four byte strings that follow: head and tail of stdout, head and tail of stderr."""
ERROR = struct.Struct(">i")
"""An errno, or `TOO_LARGE`; the message follows as UTF-8."""

ENDED, TIMEOUT, OOM, OUTPUT, DISK, PROCESSES, CANCELLED = range(7)
"""Why a command is over: by itself, or which limit ended it."""
TOO_LARGE = -1
"""A file is larger than the host asked for."""
FLOOD = 16
"""A command that prints this many times what is kept is killed."""
