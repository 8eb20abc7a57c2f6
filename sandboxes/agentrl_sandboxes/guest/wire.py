"""The frames that host and supervisor exchange over the supervisor's stdin and stdout.

A frame is `HEAD` and a body. Requests are marshalled (the guest trusts the host); answers are
packed by hand, because the host must not unmarshal what comes out of a sandbox.

    EXEC                       -> RESULT
    START                      -> DATA, then OUTPUT ..., at last RESULT; all with the id of START
    INPUT, INTERRUPT, RESET    -> DATA (INPUT when the program has taken it)
    GRANT, END, CANCEL         -> nothing; END and CANCEL carry the id of what they end
    READ, WRITE, UNPACK, PACK, FETCH -> DATA
    LISTEN                     -> DATA (the port), then CARRIED ..., at last RESULT; as for START
    CARRY                      -> nothing
    any of them                -> FAILED instead, if it cannot be done

A session may push as many bytes of `OUTPUT` as `START` and `GRANT` have allowed, so output
that is not read stays in the program's pipe and in neither of us. `FAILED` with id 0 is the
supervisor's last word.

`CARRY` and `CARRIED` are what happens on the connections of a listener. Neither side has more than
`WINDOW` bytes of a connection under way that the other has not taken (`ROOM`).
"""

from __future__ import annotations

import errno
import struct

HEAD = struct.Struct(">IBI")
"""Length of the body in bytes, kind of the frame, id of the request."""

CONFIG, EXEC, CANCEL, READ, WRITE, PACK, UNPACK, FETCH = range(8)
"""Kinds sent by the host. `CONFIG` is the first frame and carries the modules to run."""
START, INPUT, GRANT, INTERRUPT, END, RESET = range(8, 14)
"""Kinds sent by the host: a session's life, and making a used sandbox as good as new."""
LISTEN, CARRY = range(14, 16)
"""Kinds sent by the host: a port inside whose connections it answers, and one event of those."""
READY, RESULT, DATA, FAILED, OUTPUT, CARRIED = range(16, 22)
"""Kinds sent by the guest: started; a command is over (`DONE`); bytes; `ERROR` and a message; what
a session printed; an event of a connection (`EVENT`, and its bytes)."""

EVENT = struct.Struct(">IB")
"""Number of a connection, and what happens on it; bytes or a `COUNT` follow."""
OPENED, BYTES, ROOM, FINISHED, OVER, ABORT = range(6)
"""Events: a program has connected; bytes; so many of them were taken; no more bytes come; nothing
more comes at all, once what was sent has been taken; the same, at once. The first is the guest's
alone, the last the host's."""
COUNT = struct.Struct(">I")
"""The port of a listener, a number of bytes, or the errno that broke a connection."""
WINDOW = 2**17
"""Bytes of a connection that may be on the way in one direction."""
CONNECTIONS = 64
"""Connections of a listener at once; more wait in the kernel until one ends."""

DONE = struct.Struct(">BidQQ4I")
"""Reason, wait status, wall seconds, bytes missing from stdout and stderr, and the lengths of the
four byte strings that follow: head and tail of stdout, head and tail of stderr."""
MEMBER = struct.Struct(">cIIQ")
"""Kind (`d`, `f`, `l`; `s` for what is left out), permission bits, lengths of the name and of the
content that follow; one for each entry of a `FETCH`."""
ERROR = struct.Struct(">i")
"""An errno, or `TOO_LARGE`; the message follows as UTF-8."""

ENDED, TIMEOUT, OOM, FLOODED, DISK, PROCESSES, CANCELLED = range(7)
"""Why a command is over: by itself, or which limit ended it."""
TOO_LARGE = -1
"""A file or tree is larger than the host asked for."""
FLOOD = 16
"""A command that prints this many times what is kept is killed."""


def failure(error: Exception) -> bytes:
    """The body of a `FAILED` frame for what was raised; all but `OSError` is an `EIO`."""
    number, text = errno.EIO, f"{type(error).__name__}: {error}"
    if isinstance(error, OSError):
        number, text = error.errno or errno.EIO, error.strerror or str(error)
    return ERROR.pack(number) + text.encode("utf-8", "replace")
