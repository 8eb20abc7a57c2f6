"""A filter of system calls, also beside that of a container engine, which admits more.

Forbidden is what no task needs and what memory limits or walls do not cover: memory that belongs to
no process (`memfd_create`, keys, pages lent to pipes), kinds of sockets that nobody counts, the
parts of the kernel that were broken out of most often, and the disk priority of processes, which
the supervisor's later ones would inherit. They look as if the kernel had never had them, so that
programs fall back. Some calls are forbidden by what they are asked: to take time, files or memory
from the supervisor, which is a process of the same user and would fail like broken infrastructure;
and to talk to the machine below a virtual one, which no network namespace prevents.

Where no cgroup holds the memory of a sandbox, more is forbidden (`UNCOUNTED`): shared memory
without a file, which the kernel attributes to no process once its pages are given back; larger
buffers of sockets, a wish that is granted in word only. Where its objects cannot be told from those
of others, System V is forbidden.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all the rest of this takes to run
    from collections.abc import Collection

PR_SET_NO_NEW_PRIVS = 38
SECCOMP = {"x86_64": 317, "aarch64": 277}
SET_MODE_FILTER, SPEC_ALLOW = 1, 4
"""With `SPEC_ALLOW` the kernel does not slow programs down as if they ran foreign code."""

LOAD, EQUAL, AT_LEAST, AND, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
FAIL = 0x00050000
ALLOW, NO_SUCH_CALL = 0x7FFF0000, FAIL | errno.ENOSYS
X32 = 0x40000000
NEWER = (425, 426, 427, 444, 445, 446, 447)
"""io_uring (3 calls), landlock (3 calls: rules that nobody counts) and memfd_secret have one number
everywhere."""

CALLS = {
    # add_key, request_key, keyctl, perf_event_open, memfd_create, bpf, userfaultfd, ioprio_set,
    # vmsplice
    0xC000003E: (248, 249, 250, 298, 319, 321, 323, 251, 278, *NEWER),  # x86_64
    # Also socketcall, whose arguments cannot be seen.
    0x40000003: (286, 287, 288, 336, 356, 357, 374, 289, 316, 102, *NEWER),  # i386
    0xC00000B7: (217, 218, 219, 241, 279, 280, 282, 30, 75, *NEWER),  # aarch64
    0x40000028: (309, 310, 311, 364, 385, 386, 388, 314, 343, *NEWER),  # arm
}
"""Numbers of forbidden calls by architecture, as the kernel names it to the filter."""

QUESTIONS = {
    # prlimit64, sched_setparam, sched_setscheduler, sched_setaffinity, sched_setattr; setpriority;
    # socket; mmap; setsockopt
    0xC000003E: ((302, 142, 144, 203, 314), 141, 41, 9, 54),
    0x40000003: ((340, 154, 156, 241, 351), 97, 359, 192, 366),
    0xC00000B7: ((261, 118, 119, 122, 274), 140, 198, 222, 208),
    0x40000028: ((369, 154, 156, 241, 380), 97, 281, 192, 294),
}
"""Numbers of the calls whose arguments decide."""
SUPERVISOR, PRIO_USER = 1, 2
FAMILIES = (1, 2, 10, 16)
"""Families of sockets that there are, unix, IPv4, IPv6 and netlink: those whose memory is counted.
Not, for example, that to the machine below a virtual one (vsock)."""
MAP_SHARED_ANONYMOUS = 0x21
SOL_SOCKET, SO_SNDBUF, SO_RCVBUF = 1, 7, 8

SHARED, IPC, INET = "shared", "ipc", "inet"
UNCOUNTED = (SHARED, IPC)
"""What is forbidden only where nobody could count it, or remove it: shared memory without a file
and larger buffers of sockets; objects of System V. `INET` forbids sockets of the internet, loopback
with them, where no namespace keeps the network away."""
INTERNET = (2, 10)
IPC_CALLS = {
    # shmget, semget, msgget
    0xC000003E: (29, 64, 68),
    # Also ipc, whose arguments cannot be seen.
    0x40000003: (395, 393, 399, 117),
    0xC00000B7: (194, 190, 186),
    0x40000028: (307, 299, 303),
}
OLD_MMAP = {0x40000003: (90,)}
"""Its arguments lie in memory, where a filter cannot see them."""

Condition = tuple[int, int, int]
"""Index of an argument, the bits that count, the value that they must have."""
WHOLE = 0xFFFFFFFF


def rules(architecture: int, uncounted: Collection[str]) -> list[tuple[int, list[Condition], int]]:
    """Number of a call, conditions that must all hold, and what the filter then returns.

    The first rule that fits decides.
    """
    of_a_process, setpriority, socket, mmap, setsockopt = QUESTIONS[architecture]

    def ask(number: int, index: int, value: int, result: int) -> tuple[int, list[Condition], int]:
        return (number, [(index, WHOLE, value)], result)

    found = [
        *(ask(number, 0, SUPERVISOR, FAIL | errno.EPERM) for number in of_a_process),
        ask(setpriority, 0, PRIO_USER, FAIL | errno.EPERM),
        ask(setpriority, 1, SUPERVISOR, FAIL | errno.EPERM),
        *(
            ask(socket, 0, family, ALLOW)
            for family in FAMILIES
            if INET not in uncounted or family not in INTERNET
        ),
        (socket, [], FAIL | errno.EAFNOSUPPORT),
    ]
    if SHARED in uncounted:
        bits = MAP_SHARED_ANONYMOUS
        found.append((mmap, [(3, bits, bits)], FAIL | errno.EPERM))
        for option in (SO_SNDBUF, SO_RCVBUF):
            # No error: the kernel takes it as a wish, too.
            found.append((setsockopt, [(1, WHOLE, SOL_SOCKET), (2, WHOLE, option)], FAIL))
    return found


def instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """One instruction of the kernel's classic filter machine; jumps are relative to the next."""
    return struct.pack("HBBI", code, then, otherwise, value)


def rule(number: int, conditions: list[Condition], result: int) -> list[bytes]:
    """The instructions of one rule; what does not fit goes on behind them."""
    lines = [instruction(RETURN, result)]
    for index, mask, value in reversed(conditions):
        # The lower half of the argument; the kernel looks at no more of these.
        test = [instruction(LOAD, 16 + 8 * index)]
        if mask != WHOLE:
            test.append(instruction(AND, mask))
        lines = [*test, instruction(EQUAL, value, 0, len(lines)), *lines]
    return [instruction(LOAD, 0), instruction(EQUAL, number, 0, len(lines)), *lines]


def program(uncounted: Collection[str] = ()) -> list[bytes]:
    """The filter, one instruction an item: by architecture, by number, by arguments."""
    lines = [instruction(LOAD, 4)]
    for architecture, always in CALLS.items():
        numbers = always
        if IPC in uncounted:
            numbers += IPC_CALLS[architecture]
        if SHARED in uncounted:
            numbers += OLD_MMAP.get(architecture, ())
        questions = [line for item in rules(architecture, uncounted) for line in rule(*item)]
        block = [instruction(LOAD, 0)]
        far = len(questions) + 1
        for left, number in enumerate(reversed(numbers)):
            block.insert(1, instruction(EQUAL, number, left + far, 0))
        if architecture == 0xC000003E:
            block.insert(1, instruction(AT_LEAST, X32, len(numbers) + far, 0))
        block += [*questions, instruction(RETURN, ALLOW), instruction(RETURN, NO_SUCH_CALL)]
        lines += [instruction(EQUAL, architecture, 0, len(block)), *block]
    return [*lines, instruction(RETURN, NO_SUCH_CALL)]


def forbid(uncounted: Collection[str] = ()) -> None:
    """Install the filter for this process and all it becomes; nothing where we have no numbers.

    Args:
        uncounted: those of `UNCOUNTED` that are forbidden too.
    """
    number = SECCOMP.get(os.uname().machine)
    if number is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    lines = program(uncounted)
    code = ctypes.create_string_buffer(b"".join(lines))
    head = struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(code))
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # gVisor's kernel does not know the flag.
    if all(libc.syscall(number, SET_MODE_FILTER, flag, head) < 0 for flag in (SPEC_ALLOW, 0)):
        failure = ctypes.get_errno()
        raise OSError(failure, f"seccomp: {os.strerror(failure)}")
