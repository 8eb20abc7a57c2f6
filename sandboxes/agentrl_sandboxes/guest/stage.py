"""The setup of a fresh sandbox process: mounts, identity, privileges; then the supervisor.

Runs once per sandbox, before anything of the program does. It is the real root, or the root of a
new user namespace, when it mounts, and an ordinary user when it starts the supervisor: the
supervisor and the program live in one more user namespace, which has no power over the mounts.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct

from agentrl_sandboxes.guest import filter, reset, supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all the rest of this takes to run
    from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 24, 38
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}
INSIDE_ID = 1000
WATCHES = {"max_inotify_instances": 64, "max_inotify_watches": 8192, "max_fanotify_groups": 0}
"""Of files, which take memory of the kernel; how many there may be in our user namespace."""

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raise for a failed system call."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Call mount(2), and raise with both paths if it fails."""
    arguments = [value.encode() or None for value in (source, target, kind)]
    result = libc.mount(*arguments, ctypes.c_ulong(flags), data.encode() or None)
    check(result, f"mount {kind or 'bind'} {source} on {target}")


def tmpfs_inodes(size: int) -> int:
    """Number of files, directories and links on a tmpfs of `size` bytes; each takes memory too."""
    return max(1024, size // 2048)


def bound_inodes(target: str, inodes: int) -> None:
    """Bound the number of files on a tmpfs that somebody else has mounted.

    Where the kernel refuses they are counted only, see `LimitWatch`.
    """
    try:
        mount("", target, "", MS_REMOUNT | MS_NOSUID | MS_NODEV, f"nr_inodes={inodes}")
    except OSError:
        return


def join_group(fds: dict[str, int]) -> None:
    """Move this process into the cgroup that the host has made, by its files that it left open."""
    os.write(fds["join"], b"0")
    os.close(fds.pop("join"))
    for fd in fds.values():
        os.set_inheritable(fd, False)


def read_only(target: str) -> None:
    """Make one mount read-only, keeping the flags a user namespace may not take off."""
    kept = os.statvfs(target).f_flag & (MS_NODEV | MS_NOEXEC)
    mount("", target, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | kept)


def build_root(steps: list[tuple[Any, ...]]) -> None:
    """Mount a new root according to `steps` (see `agentrl_sandboxes.host.layout`) and enter it."""
    sources = {
        step[1]: os.open(step[1], os.O_PATH) for step in steps if step[0] in ("ro", "device")
    }
    mount("", "/", "", MS_REC | MS_PRIVATE)
    root = "/tmp"
    mount("agentrl", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    late: list[str] = []
    for step in steps:
        kind, target = step[0], root + step[-1]
        os.makedirs(target if kind in ("tmpfs", "proc") else os.path.dirname(target), 0o755, True)
        if kind == "link":
            os.symlink(step[1], target)
        elif kind == "tmpfs":
            size, mode = step[1], step[2]
            options = f"size={size},nr_inodes={tmpfs_inodes(size)},mode={mode:o}"
            mount("agentrl", target, "tmpfs", MS_NOSUID | MS_NODEV, options)
            if not mode & 0o222:
                late.append(step[-1])
        elif kind == "directory":
            os.makedirs(target, exist_ok=True)
            os.chmod(target, step[1])
        elif kind == "proc":
            mount("proc", target, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        elif kind in ("ro", "device"):
            place(sources[step[1]], target)
            if kind == "ro":
                late.append(step[-1])
    os.chdir(root)
    check(libc.syscall(SYS_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    check(libc.umount2(b".", MNT_DETACH), "umount of the old root")
    os.chdir("/")
    for fd in sources.values():
        os.close(fd)
    below = tuple(path + "/" for path in late)
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        mounted = [line.split()[4].encode().decode("unicode_escape") for line in file]
    for target in {*late, "/"} | {path for path in mounted if path.startswith(below)}:
        read_only(target)


def place(fd: int, target: str) -> None:
    """Bind what a descriptor stands for; it may lie where no path leads any more."""
    source = f"/proc/self/fd/{fd}"
    if os.path.isdir(source):
        os.makedirs(target, 0o755, True)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, target, "", MS_BIND | MS_REC)


def uncover(cover: str, wanted: list[str]) -> None:
    """In a mount namespace of our own, replace `cover` by nothing but the paths wanted below it.

    For the real root, whose interpreter may live where the user it becomes cannot go.
    """
    check(libc.unshare(CLONE_NEWNS), "unshare of the mount namespace")
    mount("", "/", "", MS_REC | MS_PRIVATE)
    fds = [os.open(path, os.O_PATH) for path in wanted]
    mount("agentrl", cover, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path, fd in zip(wanted, fds):
        place(fd, path)
        os.close(fd)
    read_only(cover)


def loopback_up() -> None:
    """Bring up `lo`, the only interface there is."""
    import _socket  # `socket` imports `enum` and `selectors`

    with_fd = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    request = struct.pack("16sH14x", b"lo", 0x1 | 0x40)
    try:
        fcntl.ioctl(with_fd.fileno(), 0x8914, request)  # SIOCSIFFLAGS: up, running
    finally:
        with_fd.close()


def become(uid: int | None, nested: str) -> None:
    """Take the identity of the sandbox: an ordinary user id, in a user namespace of its own.

    Args:
        uid: for the real root: what to become. None: stay.
        nested: `must`, `try` or `no`: whether to enter one more user namespace, in which no
            further one can be made.
    """
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    # The files of /proc/self belong to root while a process is not dumpable.
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    if nested != "no":
        outer = (os.getuid(), os.getgid())
        result = libc.unshare(CLONE_NEWUSER)
        if result == 0:
            put("/proc/self/setgroups", "deny")
            put("/proc/self/uid_map", f"{INSIDE_ID} {outer[0]} 1")
            put("/proc/self/gid_map", f"{INSIDE_ID} {outer[1]} 1")
            put("/proc/sys/user/max_user_namespaces", "0")
            for name, most in WATCHES.items():
                try:
                    put(f"/proc/sys/user/{name}", str(most))
                except OSError:
                    # A kernel that has none of these.
                    continue
        elif nested == "must":
            check(result, "unshare of the user namespace")


def put(path: str, text: str) -> None:
    """Write a file of /proc in one call."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def give_up_power() -> None:
    """Drop every capability for good; hide from the debugger of the program."""
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = struct.pack("Ii", 0x20080522, 0)
    check(libc.capset(header, bytes(24)), "capset")
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def main(config: dict[str, Any]) -> None:
    """Set up what `config` asks for, make the writable directories, and serve."""
    if config["group"] is not None:
        join_group(config["group"])
    if config["uncover"]:
        uncover(*config["uncover"])
    if config["root"]:
        build_root(config["root"])
        loopback_up()
        libc.sethostname(b"sandbox", 7)
    elif config["inodes"]:
        bound_inodes(config["base"], config["inodes"])
    # If the machine runs out of memory, sandboxes go before the trainer.
    config["oom_fd"] = os.open("/proc/self/oom_score_adj", os.O_RDWR)
    if int(os.pread(config["oom_fd"], 16, 0)) < 500:
        os.write(config["oom_fd"], b"500")
    for number in (1, 2, 3, 10, 12, 13, 15):
        libc.signal(number, ctypes.c_void_p(1))
    os.umask(0o022)
    if config["identity"]:
        become(config["uid"], config["nested"])
        give_up_power()
    if config["filter"]:
        filter.forbid(config["uncounted"])
    reset.make_directories(config)
    supervisor.main(config)
