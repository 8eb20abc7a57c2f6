"""Parts of the guest that need no sandbox around them: trees, wiping, the kernel's kills."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from agentrl_sandboxes.guest import disk, files, filter, trees, wire
from agentrl_sandboxes.guest.command import Command
from agentrl_sandboxes.guest.limits import RESERVE, LimitWatch


def deep(root: Path, levels: int) -> None:
    """Directories below one another, deeper than a path can be long."""
    here = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d" * 50, dir_fd=here)
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def test_wiping_takes_what_is_deeper_than_a_path_and_what_is_locked(tmp_path: Path) -> None:
    # Fails if directories are deleted by recursion on their paths: ENAMETOOLONG, and they stay.
    root = tmp_path / "root"
    (root / "locked" / "inner").mkdir(parents=True)
    (root / "locked" / "inner" / "f").write_text("x")
    (root / "link").symlink_to(tmp_path)
    deep(root, 150)
    (root / "locked" / "inner").chmod(0)
    (root / "locked").chmod(0)
    disk.wipe(str(root))
    assert not root.exists()
    assert tmp_path.is_dir()


def test_what_is_kept_survives_with_the_way_to_it(tmp_path: Path) -> None:
    (tmp_path / "a" / "kept").mkdir(parents=True)
    (tmp_path / "a" / "kept" / "f").write_text("x")
    (tmp_path / "a" / "other").mkdir()
    keep = {str(tmp_path / "a" / "kept")}
    disk.empty(str(tmp_path), keep)
    assert (tmp_path / "a" / "kept" / "f").read_text() == "x"
    assert disk.left_in(str(tmp_path), keep) == []
    (tmp_path / "a" / "late").write_text("x")
    assert disk.left_in(str(tmp_path), keep) == [str(tmp_path / "a" / "late")]


def test_hard_links_count_once(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(2**20))
    once = disk.tree_bytes(str(tmp_path))
    for number in range(20):
        os.link(tmp_path / "f", tmp_path / f"link{number}")
    assert disk.tree_bytes(str(tmp_path)) == once


def check_locked_tree(root: Path) -> None:
    # Fails if a directory is locked again before what is in it was read.
    (root / "d" / "e").mkdir(parents=True)
    (root / "d" / "e" / "f").write_text("x")
    (root / "d" / "e" / "f").chmod(0)
    (root / "d" / "e").chmod(0)
    (root / "d").chmod(0o400)
    request = {"path": b".", "max_bytes": 1}
    body = trees.fetch(os.fsencode(root), request)
    assert body == wire.MEMBER.pack(b"f", 0, 5, 1) + b"d/e/fx"
    assert b"x" in trees.pack(os.fsencode(root), request)
    assert (root / "d").stat().st_mode & 0o777 == 0o400


def test_permissions_do_not_hide_a_tree(tmp_path: Path) -> None:
    if os.geteuid():
        check_locked_tree(tmp_path)
        return
    # Permissions do not bind the real root.
    for place in (tmp_path, *tmp_path.parents):
        if not place.stat().st_mode & 0o001:
            place.chmod(0o755)
    os.chown(tmp_path, 65534, 65534)
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            check_locked_tree(tmp_path)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_a_write_keeps_permissions_and_leaves_no_draft(tmp_path: Path) -> None:
    # Fails if the draft of a write that cannot be finished stays.
    (tmp_path / "f").write_text("old")
    (tmp_path / "f").chmod(0o751)
    (tmp_path / "d").mkdir()
    place = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        files.put(place, b"d", b"x", None)
    files.put(place, b"f", b"new", None)
    os.close(place)
    assert (tmp_path / "f").read_text() == "new"
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o751
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "f"]


CONFIG = {
    "limits": {"output": 10},
    "base": "/",
    "watch": False,
    "cgroup": False,
    "places": [],
    "own_namespaces": False,
    "program_uid": None,
    "group": None,
    "inodes": 0,
}
REQUEST = {"stdin": b"", "timeout": 1.0}


@pytest.mark.parametrize(
    ("status", "counter", "reason"),
    [
        (9, "oom_kill 2", wire.OOM),
        (137 << 8, "oom_kill 2", wire.OOM),
        (9, "oom_kill 1", wire.ENDED),
        (1 << 8, "oom_kill 2", wire.ENDED),
        (0, "oom_kill 2", wire.ENDED),
    ],
)
def test_the_kernels_kill_for_memory_is_told_from_others(
    tmp_path: Path, status: int, counter: str, reason: int
) -> None:
    # Fails if every SIGKILL counts, or if only a look at /proc can find that memory ran out.
    limits = LimitWatch(CONFIG)
    limits.oom_file = str(tmp_path / "memory.events")
    Path(limits.oom_file).write_text("low 0\noom 5\noom_kill 1\n")
    command = Command(1, REQUEST, 10)
    command.oom_kills = limits.oom_kills()
    assert command.oom_kills == 1
    Path(limits.oom_file).write_text(f"low 0\noom 5\n{counter}\n")
    command.status = status
    limits.judge(command)
    assert command.reason == reason


def test_a_full_container_is_seen_before_the_kernel_acts(tmp_path: Path) -> None:
    # Fails if pages that can be read again count, if nothing is kept free, or if a container
    # without a limit ("max") breaks it.
    limits = LimitWatch(CONFIG | {"limits": {"memory": 7}})
    assert limits.cgroup_left() == 7
    place = str(tmp_path)
    limits.cgroup = (f"{place}/current", f"{place}/max", f"{place}/stat")
    for held, most, left in ((100, 1000, 900), (950, 1000, 80), (1000, 1000, 30), (9, "max", 7)):
        scale = 2**20
        (tmp_path / "current").write_text(f"{held * scale}\n")
        (tmp_path / "max").write_text(f"{most if most == 'max' else int(most) * scale}\n")
        (tmp_path / "stat").write_text(f"inactive_file {10 * scale}\nactive_file {20 * scale}\n")
        free = limits.cgroup_left()
        assert free == (7 if most == "max" else left * scale - RESERVE)


def test_forbidden_calls_look_as_if_there_were_none() -> None:
    # Fails if a jump of the filter is one off: a call passes, or all calls fail.
    child = os.fork()
    if not child:
        code = 1
        try:
            filter.forbid()
            libc = ctypes.CDLL(None, use_errno=True)
            architecture = ARCHITECTURES[os.uname().machine]
            numbers = filter.CALLS[architecture]
            seen = {(libc.syscall(number, 0, 0, 0, 0, 0), ctypes.get_errno()) for number in numbers}
            list(Path("/").iterdir())
            code = 0 if seen == {(-1, errno.ENOSYS)} and os.getpid() else 2
            # Others are forbidden by what they ask of whom; here process 1 is somebody else's.
            asked = filter.rules(architecture, ())
            code = code if len(asked) > 7 else 5
            for number, conditions, result in asked:
                arguments = [0, 0, 0, 0, 0]
                for index, _, value in conditions:
                    arguments[index] = value
                error = result & 0xFFFF
                if result != filter.ALLOW and (
                    libc.syscall(number, *arguments) != -1 or ctypes.get_errno() != error
                ):
                    code = 3
            if resource.prlimit(0, resource.RLIMIT_NOFILE)[0] < 1 or os.getpriority(0, 0) > 19:
                code = 4
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


IP_PKTINFO = 8
"""The number of SO_RCVBUF at another level."""


def in_child(check: Callable[[], bool]) -> bool:
    """Run a check in a fork, which may give up rights."""
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def refused(call: Callable[[], object]) -> int:
    """The error number of a call; 0 if it works."""
    try:
        call()
    except OSError as error:
        return error.errno or -1
    return 0


def kinds_of_sockets() -> list[int]:
    """Errors of a socket of each family: unix, IPv4, IPv6, netlink, and four others."""
    families = (1, 2, 10, 16, 38, 40, 44, 17)
    return [refused(lambda f=family: socket.socket(f, socket.SOCK_DGRAM)) for family in families]


def test_sockets_whose_memory_nobody_counts_are_not_there() -> None:
    # Fails if families are forbidden by name only: AF_ALG, AF_XDP and the next one pass.
    def check() -> bool:
        filter.forbid()
        found = kinds_of_sockets()
        return found[:4] == [0, 0, 0, 0] and set(found[4:]) == {errno.EAFNOSUPPORT}

    assert in_child(check)


def test_what_cannot_be_counted_is_forbidden_only_without_a_cgroup() -> None:
    # Fails if private or file-backed memory is refused as well, or if a wish for a larger buffer is
    # granted or is an error.
    libc = ctypes.CDLL(None, use_errno=True)

    def wish(option: int) -> int:
        with socket.socket() as one:
            before = one.getsockopt(socket.SOL_SOCKET, option)
            one.setsockopt(socket.SOL_SOCKET, option, 2 * before)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            one.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
            kept = one.getsockopt(socket.SOL_SOCKET, option) == before
            return int(kept and one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1)

    def file_mapping() -> object:
        with tempfile.TemporaryFile() as file:
            file.truncate(4096)
            return mmap.mmap(file.fileno(), 4096)

    def seen() -> list[int]:
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        return [
            refused(lambda: mmap.mmap(-1, 4096)),
            refused(lambda: mmap.mmap(-1, 4096, flags=private)),
            refused(file_mapping),
            int(libc.msgget(-1, 0) < 0 and ctypes.get_errno()),
        ]

    def only_shared() -> bool:
        filter.forbid((filter.SHARED,))
        wishes = [wish(socket.SO_SNDBUF), wish(socket.SO_RCVBUF)]
        return seen()[:3] == [errno.EPERM, 0, 0] and wishes == [1, 1]

    def both() -> bool:
        filter.forbid(filter.UNCOUNTED)
        return seen()[3] == errno.ENOSYS

    def neither() -> bool:
        filter.forbid()
        return seen()[:3] == [0, 0, 0] and seen()[3] != errno.ENOSYS

    assert in_child(only_shared)
    assert in_child(both)
    assert in_child(neither)


def test_what_goes_while_a_tree_is_read_is_passed_over(tmp_path: Path) -> None:
    """Fails if a program that deletes files beside us costs the whole transfer."""

    class Late(trees.Unlocked):
        def open(self, path: bytes, wanted: int) -> None:
            shutil.rmtree(root / "b", ignore_errors=True)
            if path.endswith(b"/a"):
                (root / "c").unlink(missing_ok=True)
                (root / "d").unlink(missing_ok=True)
            super().open(path, wanted)

    root = tmp_path / "root"
    name = os.fsencode(root)

    for whole in (False, True):
        with pytest.raises(FileNotFoundError):
            trees.fetch_tree(name, name, 99, Late(), whole)
        (root / "b" / "inner").mkdir(parents=True)
        (root / "d").symlink_to("a")
        for path in ("a", "b/inner/f", "c", "e"):
            (root / path).write_text(path)
        found = trees.fetch_tree(name, name, 99, Late(), whole)
        assert b"aa" in found
        assert b"ee" in found
        assert b"c" not in found
        shutil.rmtree(root)
    (root / "b").mkdir(parents=True)
    listed: list[bytes] = []
    for path, *_ in trees.pack_tree(name, 99, trees.Unlocked()):
        listed.append(path)
        shutil.rmtree(root)
    assert listed == [b"b"]
