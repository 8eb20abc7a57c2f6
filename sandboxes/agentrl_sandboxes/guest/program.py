"""The start of a program by its leader: its limits, its own session, and nothing of ours in it."""

from __future__ import annotations

import ctypes
import os
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all the rest of this takes to run
    from collections.abc import Iterator
    from typing import Any, NoReturn

PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
SIGNALS = (1, 2, 3, 10, 12, 13, 15, 17, 20, 21, 22, 25)
"""Signals we ignore, or may have inherited as ignored; other handlers end with us anyway."""
OWN_FILES = 32
"""File descriptors that a leader may need."""

LATER_LEADERS = 128
"""How many more processes a program may have than were foreseen when its leader was made; the
supervisor, which counts without leaders, ends those that have too many."""

libc = ctypes.CDLL(None, use_errno=True)


def start_program(
    config: dict[str, Any], request: dict[str, Any], stdio: tuple[int, int, int], leaders: int
) -> int:
    """Start the program; 126 or 127 with a message if it cannot be run.

    Where program and leader are the same user, the leader takes on the limits itself and lets the
    C library start the program, which need not copy our page tables as a fork does.
    """
    failure: OSError | None = None
    if config["program_uid"] is None and config["limits"]["open_files"] >= OWN_FILES:
        try:
            limit(config, leaders, LATER_LEADERS)
            try:
                return spawn(config, request, stdio)
            except BlockingIOError:
                # Leaders that came since are processes of the same user.
                _, most = resource.getrlimit(resource.RLIMIT_NPROC)
                resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
                return spawn(config, request, stdio)
        except NotImplementedError:
            # A C library that cannot start a session; a fork can.
            pass
        except OSError as error:
            failure = error
    program = os.fork()
    if not program and failure is not None:
        os._exit(complain(stdio[2], request["argv"], failure))
    if not program:
        become(config, request, stdio, leaders)
    return program


def spawn(config: dict[str, Any], request: dict[str, Any], stdio: tuple[int, int, int]) -> int:
    """Start the program by the C library, from a leader that has its limits."""
    os.chdir(os.path.join(os.fsencode(config["workdir"]), request["cwd"]))
    # Here and not as actions of the start: those refuse descriptors above the new limit.
    for target, fd in enumerate(stdio):
        os.dup2(fd, target)
    failure: OSError = FileNotFoundError(2, "No such file or directory")
    for name in names_of(request):
        # A failed start costs as much as one that works.
        if name != request["argv"][0] and not os.path.exists(name):
            continue
        try:
            return os.posix_spawn(
                name,
                request["argv"],
                request["env"],
                setsid=True,
                setsigdef=SIGNALS,
            )
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failure = error
    raise failure


def become(
    config: dict[str, Any], request: dict[str, Any], stdio: tuple[int, int, int], leaders: int
) -> NoReturn:
    """Turn this fork into the program."""
    code = 126
    try:
        for target, fd in enumerate(stdio):
            os.dup2(fd, target)
        os.setsid()
        for number in SIGNALS:
            libc.signal(number, None)
        os.chdir(os.path.join(os.fsencode(config["workdir"]), request["cwd"]))
        limit(config, leaders)
        failure: OSError = FileNotFoundError(2, "No such file or directory")
        for name in names_of(request):
            try:
                os.execve(name, request["argv"], request["env"])
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                failure = error
        raise failure
    except Exception as error:  # a fork must not unwind into the supervisor's code
        code = complain(2, request["argv"], error)
    finally:
        os._exit(code)


def names_of(request: dict[str, Any]) -> Iterator[bytes]:
    """Paths at which the program may be: its own, or below each directory of PATH."""
    program: bytes = request["argv"][0]
    if b"/" in program:
        yield program
        return
    for place in request["env"].get(b"PATH", b"").split(b":"):
        if place:
            yield place + b"/" + program


def complain(fd: int, argv: list[bytes], error: Exception) -> int:
    """Write why a program cannot be run; the exit status for it."""
    reason = getattr(error, "strerror", None) or repr(error)
    os.write(fd, b"cannot run " + argv[0] + b": " + reason.encode("utf-8", "replace") + b"\n")
    return 127 if isinstance(error, FileNotFoundError) else 126


def limit(config: dict[str, Any], leaders: int, later: int = 0) -> None:
    """Set the limits that the kernel keeps for us, and give up what the program must not have.

    The number of processes may be raised by `later` afterwards.
    """
    limits = config["limits"]
    uid = config["program_uid"]
    # Supervisor and leaders are processes of the same user unless the program gets its own.
    own = 0 if uid is not None else 1 + leaders
    # Private memory is bounded close to the limit, address space loosely: runtimes reserve far
    # more than they touch. The sum over processes is watched by the supervisor.
    memory = limits["memory"]
    bounds = {
        resource.RLIMIT_NPROC: config["other_processes"] + limits["processes"] + own,
        resource.RLIMIT_DATA: memory + memory // 2,
        resource.RLIMIT_AS: 2 * memory + 2**30,
        resource.RLIMIT_FSIZE: limits["disk"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_CORE: 0,
        # Queues of messages would outlive the command, out of anybody's sight.
        resource.RLIMIT_MSGQUEUE: 0,
        # Signals that wait and timers are memory of the kernel.
        resource.RLIMIT_SIGPENDING: 4096,
    }
    for kind, bound in bounds.items():
        _, hard = resource.getrlimit(kind)
        most = bound + later if kind == resource.RLIMIT_NPROC else bound
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (min(bound, most), most))
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.nice(config["nice"])
