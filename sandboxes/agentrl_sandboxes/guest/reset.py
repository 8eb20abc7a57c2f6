"""The writable places of a sandbox: made at its start, and made as good as new for its next user.

What a program can leave behind besides files: processes (they are killed before), System V shared
memory, semaphores and queues, keys of the kernel's keyrings, attributes of directories, and TCP
connections that outlive their process by up to a minute; where there are some, the sandbox is not
clean. POSIX message queues cannot be made (see `command.limit`) unless their file system is among
the places.
"""

from __future__ import annotations

import ctypes
import errno
import os

from agentrl_sandboxes.guest.disk import empty, left_in
from agentrl_sandboxes.guest.processes import read_lines

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all the rest of this takes to run
    from typing import Any

NAMES = ("work", "home", "tmp", "shm", "bin")
IPC = ("shm", "sem", "msg")
IPC_RMID = 0
CONNECTIONS = {
    "/proc/net/sockstat": ("TCP:", ("inuse", "tw")),
    "/proc/net/sockstat6": ("TCP6:", ("inuse",)),
}
"""Counters of a network namespace. Its tables would take 10 ms to read: the kernel walks through
the hash table of the whole machine."""
KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
KEYCTL_CLEAR, SESSION_KEYRING, USER_KEYRING, USER_SESSION_KEYRING = 7, -3, -4, -5

libc = ctypes.CDLL(None, use_errno=True)


def make_directories(config: dict[str, Any]) -> None:
    """The writable places of the program, below `base`; ours is the work directory."""
    base, uid = config["base"], config["program_uid"]
    os.makedirs(base, 0o711, True)
    for name in NAMES:
        path = f"{base}/{name}"
        os.makedirs(path, 0o755, True)
        if uid is not None and name != "bin":
            os.chown(path, uid, uid)
    for target, text in config["links"]:
        os.symlink(text, target)
    os.chdir(config["workdir"])


def modes_of(config: dict[str, Any]) -> dict[str, int]:
    """Permission bits of the places that are emptied, as they should be."""
    places = [config["base"], *config["places"]]
    return {path: os.stat(path).st_mode & 0o7777 for path in places if os.path.isdir(path)}


def clean(config: dict[str, Any], modes: dict[str, int]) -> None:
    """Empty every writable place, when no process is left that could fill it again.

    Raises:
        OSError: something cannot be removed; the sandbox must not be used again.
    """
    os.chdir("/")
    keep = {*config["keep"], *modes} - {config["base"]}
    for path, mode in modes.items():
        empty(path, keep)
        for name in os.listxattr(path):
            # Lists of who may do what pass on to all that is made below.
            if name.startswith(("user.", "system.posix_acl_")):
                os.removexattr(path, name)
        if os.stat(path).st_mode & 0o7777 != mode:
            os.chmod(path, mode)
        if os.stat(path).st_uid == os.getuid():
            os.utime(path)
    for path in config["files"]:
        os.truncate(path, 0)
    for path in modes:
        for left in left_in(path, keep):
            raise OSError(errno.EBUSY, f"{left} cannot be removed")
    for kind in IPC:
        remove_ipc(kind, None)
        if ipc_objects(kind, None):
            raise OSError(errno.EBUSY, f"System V objects ({kind}) cannot be removed")
    clear_keys()
    if left := connections():
        raise OSError(errno.EBUSY, f"{left} TCP connections are not closed yet")
    make_directories(config)


def connections() -> int:
    """TCP connections of our network namespace, those without a process included."""
    count = 0
    for path, (head, names) in CONNECTIONS.items():
        for line in read_lines(path):
            words = line.split()
            if words[:1] == [head]:
                fields = dict(zip(words[1::2], words[2::2], strict=False))
                count += sum(int(fields.get(name, 0)) for name in names)
    return count


def remove_ipc(kind: str, creator: int | None) -> None:
    """Delete System V shared memory, semaphores or message queues."""
    for ident in ipc_objects(kind, creator):
        if kind == "shm":
            libc.shmctl(ident, IPC_RMID, None)
        elif kind == "sem":
            libc.semctl(ident, 0, IPC_RMID)
        else:
            libc.msgctl(ident, IPC_RMID, None)


def ipc_objects(kind: str, creator: int | None) -> dict[int, list[str]]:
    """System V objects in our namespace: the fields of each by its id.

    Args:
        kind: `shm`, `sem` or `msg`.
        creator: user id of the programs, where the namespace is shared; None: those of all.
    """
    try:
        with open(f"/proc/sysvipc/{kind}", encoding="utf-8") as file:
            found = [line.split() for line in list(file)[1:]]
    except FileNotFoundError:
        # A kernel without them.
        return {}
    column = 6 if kind == "sem" else 9
    return {int(f[1]): f for f in found if creator is None or int(f[column]) == creator}


def clear_keys() -> None:
    """Forget keys; where a filter forbids the call to us, it does so to programs too."""
    number = KEYCTL.get(os.uname().machine)
    for ring in (SESSION_KEYRING, USER_KEYRING, USER_SESSION_KEYRING) if number else ():
        libc.syscall(number, KEYCTL_CLEAR, ring, 0, 0, 0)
