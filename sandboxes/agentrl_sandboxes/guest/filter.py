"""A filter of system calls, also beside that of a container engine, which lets more pass.

Forbidden is what no task needs and what memory limits or walls do not cover: memory that belongs to
no process (`memfd_create`, keys), the parts of the kernel that were broken out of most often, and
the disk priority of processes, which the supervisor's later ones would inherit.
They look as if the kernel had never had them, so that programs fall back. Some calls are forbidden
by what they are asked: to take time, files or memory from the supervisor, which is a process of the
same user and would fail like broken infrastructure; and to talk to the machine below a virtual one,
which no network namespace prevents.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

PR_SET_NO_NEW_PRIVS = 38
SECCOMP = {"x86_64": 317, "aarch64": 277}
SET_MODE_FILTER, SPEC_ALLOW = 1, 4
"""With `SPEC_ALLOW` the kernel does not slow programs down as if they ran foreign code."""

LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
FAIL = 0x00050000
ALLOW, NO_SUCH_CALL = 0x7FFF0000, FAIL | errno.ENOSYS
X32 = 0x40000000
NEWER = (425, 426, 427, 447)
"""io_uring (3 calls) and memfd_secret have one number everywhere."""

CALLS = {
    # add_key, request_key, keyctl, perf_event_open, memfd_create, bpf, userfaultfd, ioprio_set
    0xC000003E: (248, 249, 250, 298, 319, 321, 323, 251, *NEWER),  # x86_64
    # Also socketcall, whose arguments cannot be seen.
    0x40000003: (286, 287, 288, 336, 356, 357, 374, 289, 102, *NEWER),  # i386
    0xC00000B7: (217, 218, 219, 241, 279, 280, 282, 30, *NEWER),  # aarch64
    0x40000028: (309, 310, 311, 364, 385, 386, 388, 314, *NEWER),  # arm
}
"""Numbers of forbidden calls by architecture, as the kernel names it to the filter."""

QUESTIONS = {
    # prlimit64, sched_setparam, sched_setscheduler, sched_setaffinity, sched_setattr; setpriority;
    # socket
    0xC000003E: ((302, 142, 144, 203, 314), 141, 41),
    0x40000003: ((340, 154, 156, 241, 351), 97, 359),
    0xC00000B7: ((261, 118, 119, 122, 274), 140, 198),
    0x40000028: ((369, 154, 156, 241, 380), 97, 281),
}
"""Numbers of the calls whose arguments decide."""
SUPERVISOR, PRIO_USER, AF_VSOCK = 1, 2, 40


def forbidden_arguments(architecture: int) -> list[tuple[int, int, int, int]]:
    """Number of a call, index of an argument, the value it must not have, and the error then."""
    of_a_process, setpriority, socket = QUESTIONS[architecture]
    return [
        *((number, 0, SUPERVISOR, errno.EPERM) for number in of_a_process),
        (setpriority, 0, PRIO_USER, errno.EPERM),
        (setpriority, 1, SUPERVISOR, errno.EPERM),
        (socket, 0, AF_VSOCK, errno.EAFNOSUPPORT),
    ]


def program() -> list[bytes]:
    """The filter, one instruction an item: by architecture, by number, by arguments."""

    def instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
        return struct.pack("HBBI", code, then, otherwise, value)

    lines = [instruction(LOAD, 4)]
    for architecture, numbers in CALLS.items():
        questions: list[bytes] = []
        for number, index, value, error in forbidden_arguments(architecture):
            questions += [
                *(instruction(LOAD, 0), instruction(EQUAL, number, 0, 3)),
                # The lower half of the argument; the kernel looks at no more of these.
                *(instruction(LOAD, 16 + 8 * index), instruction(EQUAL, value, 0, 1)),
                instruction(RETURN, FAIL | error),
            ]
        block = [instruction(LOAD, 0)]
        far = len(questions) + 1
        for left, number in enumerate(reversed(numbers)):
            block.insert(1, instruction(EQUAL, number, left + far, 0))
        if architecture == 0xC000003E:
            block.insert(1, instruction(AT_LEAST, X32, len(numbers) + far, 0))
        block += [*questions, instruction(RETURN, ALLOW), instruction(RETURN, NO_SUCH_CALL)]
        lines += [instruction(EQUAL, architecture, 0, len(block)), *block]
    return [*lines, instruction(RETURN, NO_SUCH_CALL)]


def forbid() -> None:
    """Install the filter for this process and all it becomes; nothing where we have no numbers."""
    number = SECCOMP.get(os.uname().machine)
    if number is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    lines = program()
    code = ctypes.create_string_buffer(b"".join(lines))
    head = struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(code))
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # gVisor's kernel does not know the flag.
    if all(libc.syscall(number, SET_MODE_FILTER, flag, head) < 0 for flag in (SPEC_ALLOW, 0)):
        failure = ctypes.get_errno()
        raise OSError(failure, f"seccomp: {os.strerror(failure)}")
