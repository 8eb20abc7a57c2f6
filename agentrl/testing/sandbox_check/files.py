"""Checks of files: reading, writing, uploading, snapshots, and paths that lead astray."""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from agentrl.sandbox import Outcome, Sandbox, SandboxBackend, Snapshot
from agentrl.testing.sandbox_check.check import LIMITS, brief, check, expect, good, opened, refused


@check()
async def files_round_trip(backend: SandboxBackend) -> None:
    """Empty, binary and large files come back as they were written, directories are made."""
    async with opened(backend) as sandbox:
        for name, data in (
            ("empty", b""),
            ("a/b/c/binary", bytes(range(256)) * 4),
            ("large", os.urandom(2**20) * 8),
            ("absolute", b"x"),
        ):
            path = f"{sandbox.workdir}/{name}" if name == "absolute" else name
            await sandbox.write_file(path, data)
            assert await sandbox.read_file(path, max_bytes=2**24) == data, name
            size = await good(sandbox, f"import os; print(os.stat({name!r}).st_size)")
            assert int(size) == len(data), f"{name} has {size} bytes inside"


@check()
async def odd_names(backend: SandboxBackend) -> None:
    """Names with spaces, quotes, new lines, dashes, other scripts, and very long ones work."""
    names = ["a b", "quo'te\"", "new\nline", "-rf", "\u6f22\u00e9", "n" * 200, ".hidden", "a;b|c&"]
    async with opened(backend) as sandbox:
        for name in names:
            await sandbox.write_file(name, name.encode())
            assert await sandbox.read_file(name) == name.encode(), ascii(name)
        listed = await good(sandbox, "import os; print(ascii(sorted(os.listdir('.'))))")
    assert listed.strip() == ascii(sorted(names)), listed


@check()
async def overwriting(backend: SandboxBackend) -> None:
    """Writing a file again replaces it whole."""
    async with opened(backend) as sandbox:
        await sandbox.write_file("f", b"long content")
        await sandbox.write_file("f", b"short")
        assert await sandbox.read_file("f") == b"short"


@check()
async def missing_files_and_directories(backend: SandboxBackend) -> None:
    """A missing file and a directory raise what their names promise."""
    async with opened(backend) as sandbox:
        await sandbox.write_file("d/f", b"")
        await refused(sandbox.read_file("nothing"), FileNotFoundError)
        await refused(sandbox.read_file("d"), IsADirectoryError)
        await refused(sandbox.write_file("d", b""), OSError)


@check()
async def unreadable_file(backend: SandboxBackend) -> None:
    """A file without read permission raises `PermissionError`."""
    async with opened(backend) as sandbox:
        await sandbox.write_file("f", b"x")
        expect(await sandbox.exec(("chmod", "000", "f")), Outcome.OK)
        await refused(sandbox.read_file("f"), PermissionError)


@check()
async def size_limit_of_a_read(backend: SandboxBackend) -> None:
    """A file larger than `max_bytes` raises `ValueError`; one of exactly that size is read."""
    async with opened(backend) as sandbox:
        await sandbox.write_file("f", b"x" * 1000)
        assert len(await sandbox.read_file("f", max_bytes=1000)) == 1000
        await refused(sandbox.read_file("f", max_bytes=999), ValueError)


@check()
async def write_to_a_full_disk(backend: SandboxBackend) -> None:
    """Writing more than the disk holds raises `OSError`, and the sandbox goes on."""
    async with opened(backend) as sandbox:
        await refused(sandbox.write_file("big", b"x" * (LIMITS.disk_bytes + 2**20)), OSError)
        await sandbox.write_file("small", b"x")


@check()
async def traversal_is_refused(backend: SandboxBackend) -> None:
    """Paths that lead out of the work directory raise `PermissionError`."""
    async with opened(backend) as sandbox:
        await sandbox.write_file("d/f", b"x")
        for path in ("../../../../../etc/passwd", "/etc/passwd", "d/../../f", "/proc/self/environ"):
            await refused(sandbox.read_file(path), PermissionError)
            await refused(sandbox.write_file(path, b"x"), PermissionError)
        assert await sandbox.read_file("d/../d/f") == b"x"


@check()
async def links_that_lead_out(backend: SandboxBackend) -> None:
    """Symbolic links to files or directories outside are not followed, in reads or writes."""
    script = "ln -s /etc/passwd file; ln -s /etc dir; ln -s ../../tmp up; ln -s /proc/self/fd fds"
    async with opened(backend) as sandbox:
        expect(await sandbox.exec(("sh", "-c", script)), Outcome.OK)
        for path in ("file", "dir/passwd", "up/x", "fds/0"):
            await refused(sandbox.read_file(path), PermissionError)
            await refused(sandbox.write_file(path, b"x"), PermissionError)


@check()
async def links_that_stay_inside(backend: SandboxBackend) -> None:
    """Symbolic links inside the work directory are followed."""
    async with opened(backend) as sandbox:
        await sandbox.write_file("d/f", b"x")
        expect(await sandbox.exec(("sh", "-c", 'ln -s d e; ln -s "$PWD/d/f" g')), Outcome.OK)
        assert await sandbox.read_file("e/f") == b"x"
        assert await sandbox.read_file("g") == b"x"
        await sandbox.write_file("e/new", b"y")
        assert await sandbox.read_file("d/new") == b"y"


@check()
async def special_files(backend: SandboxBackend) -> None:
    """Reading a named pipe is refused at once instead of waiting for a writer."""
    async with opened(backend) as sandbox:
        expect(await sandbox.exec(("mkfifo", "pipe")), Outcome.OK)
        await refused(sandbox.read_file("pipe"), PermissionError)


def _make_tree(root: Path) -> None:
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "sub" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "sub" / "run.sh").chmod(0o755)
    (root / "data").write_bytes(bytes(range(256)))
    (root / "link").symlink_to("sub/run.sh")


@check()
async def upload_of_a_tree(backend: SandboxBackend) -> None:
    """A tree arrives with its files, permissions, empty directories and inner links."""
    with tempfile.TemporaryDirectory() as place:
        _make_tree(Path(place))
        async with opened(backend) as sandbox:
            await sandbox.upload(Path(place), "in/tree")
            assert await sandbox.read_file("in/tree/data") == bytes(range(256))
            result = await sandbox.exec(("in/tree/link",))
            assert result.stdout == "ran\n", result
            kinds = "from os.path import isdir, islink\n"
            kinds += "print(isdir('in/tree/sub/empty'), islink('in/tree/link'))"
            assert (await good(sandbox, kinds)).split() == ["True", "True"]
            await sandbox.upload(Path(place) / "data", "one")
            assert await sandbox.read_file("one") == bytes(range(256))


@check()
async def upload_of_a_link_that_leads_out(backend: SandboxBackend) -> None:
    """A tree with a link to something outside it is refused."""
    async with opened(backend) as sandbox:
        for target in ("/etc/passwd", "../../secret"):
            with tempfile.TemporaryDirectory() as place:
                (Path(place) / "bad").symlink_to(target)
                await refused(sandbox.upload(Path(place), "in"), PermissionError)


@check()
async def upload_to_a_place_outside(backend: SandboxBackend) -> None:
    """An upload goes nowhere but below the work directory, through links neither."""
    with tempfile.TemporaryDirectory() as place:
        _make_tree(Path(place))
        async with opened(backend) as sandbox:
            expect(await sandbox.exec(("ln", "-s", "/tmp", "out")), Outcome.OK)
            for target in ("../elsewhere", "/etc/elsewhere", "out/elsewhere"):
                await refused(sandbox.upload(Path(place), target), PermissionError)


@check()
async def snapshot_and_forks(backend: SandboxBackend) -> None:
    """Sandboxes made from a snapshot begin equal and do not see each other's changes."""
    snapshot: Snapshot | None = None
    async with opened(backend) as first:
        await first.write_file("d/f", b"one")
        script = "mkdir empty; ln -s d link; printf x > run; chmod 750 run; chmod 500 d"
        expect(await first.exec(("sh", "-c", script)), Outcome.OK)
        snapshot = await first.snapshot()
        await first.write_file("later", b"x")
    try:
        second = await backend.create(LIMITS, snapshot)
        third = await backend.create(LIMITS, snapshot)
        try:
            look = "import os; print(sorted(os.listdir('.')), os.readlink('link'), "
            look += "oct(os.stat('run').st_mode), oct(os.stat('d').st_mode))"
            seen = (await good(second, look)).strip()
            wanted = "['d', 'empty', 'link', 'run'] d 0o100750 0o40500"
            assert seen == wanted, f"{seen} instead of {wanted}"
            await second.write_file("run", b"changed")
            assert await third.read_file("run") == b"x", "a sibling sees a change"
            assert await third.read_file("d/f") == b"one"
        finally:
            await second.close()
            await third.close()
    finally:
        await snapshot.close()
        await snapshot.close()


@check(optional="download")
async def download_of_a_tree(backend: SandboxBackend) -> None:
    """The regular files of a tree come back by name; links, pipes and directories do not."""
    script = (
        "mkdir -p d/sub/empty; : > d/none\n"
        "printf '\\0\\377' > d/sub/binary; chmod 111 d/sub/binary\n"
        "ln -s none d/inner; ln -s /etc/passwd d/outer; ln -s /etc d/folder; ln -s nowhere d/gone\n"
        "mkfifo d/pipe; touch 'd/new\nline' \"d/$(printf 'b\\377d')\"; printf x > d/-rf"
    )
    async with opened(backend) as sandbox:
        expect(await sandbox.exec(("sh", "-c", script)), Outcome.OK)
        await sandbox.write_file("d/sub/large", bytes(2**20))
        found = await sandbox.download("d", max_bytes=2**21)
        wanted = {
            "none": b"",
            "sub/binary": b"\0\xff",
            "sub/large": bytes(2**20),
            "new\nline": b"",
            os.fsdecode(b"b\xffd"): b"",
            "-rf": b"x",
        }
        assert found == wanted, f"{sorted(map(ascii, found))} or other content"
        assert set(await sandbox.download(".", max_bytes=2**21)) == {f"d/{n}" for n in wanted}
        assert await sandbox.download("d/-rf", max_bytes=1) == {"-rf": b"x"}
        assert await sandbox.download("d/sub/empty", max_bytes=0) == {}


_TREE = r"""
import os, socket
os.umask(0o022)
for folder in ("d", "d/empty", "d/sub", "d/sub/deep er", "d/locked", "d/sticky"):
    os.mkdir(folder)
names = {"d/none": b"", "d/sub/run.sh": b"ran", "d/private": b"k", "d/nobody": b"n", "d/su": b"s",
         "d/new\nline": b"1", "d/a b": b"2", b"d/b\xffd": b"3", "d/-rf": b"4", "d/locked/in": b"5",
         "d/large": bytes(range(256)) * 8192}
for name, data in names.items():
    with open(name, "wb") as file:
        file.write(data)
for name, mode in (("sub/run.sh", 0o755), ("private", 0o600), ("nobody", 0), ("su", 0o4755),
                   ("locked", 0o555), ("sticky", 0o1777)):
    os.chmod("d/" + name, mode)
for name, target in (("near", "sub/run.sh"), ("far", "/etc/passwd"), ("gone", "nowhere/at all"),
                     ("folder", "sub"), ("up", "../../etc")):
    os.symlink(target, "d/" + name)
os.mkfifo("d/pipe")
socket.socket(socket.AF_UNIX).bind("d/sub/socket")
"""
_SHOWN = """
import hashlib, os, stat
root = FOLDER
out = []
for place, folders, files in os.walk(root):
    for name in folders + files + [b"."]:
        path = os.path.join(place, name)
        info = os.lstat(path)
        kind = stat.S_IFMT(info.st_mode)
        if kind in (stat.S_IFIFO, stat.S_IFSOCK):
            continue
        what = os.readlink(path) if kind == stat.S_IFLNK else b""
        mode = stat.S_IMODE(info.st_mode)
        if kind == stat.S_IFREG:
            os.chmod(path, 0o600)
            what = hashlib.sha256(open(path, "rb").read()).hexdigest()
            os.chmod(path, mode)
        out.append((os.path.relpath(path, root), kind, mode if kind != stat.S_IFLNK else 0, what))
print(sorted(out))
"""


@check()
async def trees_move_whole(backend: SandboxBackend) -> None:
    """A tree of every kind arrives in another sandbox as it was, but for pipes and sockets."""
    async with opened(backend) as first, opened(backend) as second:
        await good(first, _TREE)
        tree = await first.download_tree("d", max_bytes=2**22)
        assert sorted(tree.left_out) == ["pipe", "sub/socket"], tree.left_out
        await second.upload_tree(tree, "d")
        one, two = [await good(sandbox, f"FOLDER = b'd'\n{_SHOWN}") for sandbox in (first, second)]
        assert one == two, f"{one} became {two}"
        assert tree.entries["far"].data == b"/etc/passwd"
        assert await second.download_tree("d", max_bytes=2**22) == replace(tree, left_out=())
        size = sum(len(entry.data) for entry in tree.files().values())
        await refused(first.download_tree("d", max_bytes=size - 1), ValueError)
        await refused(first.download_tree("nothing", max_bytes=9), FileNotFoundError)
        await refused(first.download_tree("d/none", max_bytes=9), NotADirectoryError)
        await refused(second.upload_tree(tree, "../outside"), PermissionError)


@check(optional="download")
async def size_limit_of_a_download(backend: SandboxBackend) -> None:
    """Files of exactly `max_bytes` come; one byte more, or a huge file of holes, does not."""
    async with opened(backend) as sandbox:
        await sandbox.write_file("a", b"x" * 1000)
        await sandbox.write_file("b", b"x" * 500)
        assert len(await sandbox.download(".", max_bytes=1500)) == 2
        await refused(sandbox.download(".", max_bytes=1499), ValueError)
        holes = f"for n in 1 2 3 4 5 6; do truncate -s {LIMITS.disk_bytes} hole$n; done"
        expect(await sandbox.exec(("sh", "-c", holes)), Outcome.OK)
        await refused(sandbox.download(".", max_bytes=2**20), ValueError)
        expect(await sandbox.exec(("true",)), Outcome.OK)


@check(optional="download")
async def download_from_elsewhere(backend: SandboxBackend) -> None:
    """A path that is not there, or outside, or behind a link that leads out, is refused."""
    async with opened(backend) as sandbox:
        expect(await sandbox.exec(("ln", "-s", "/etc", "out")), Outcome.OK)
        await refused(sandbox.download("nothing", max_bytes=10), FileNotFoundError)
        for path in ("..", "../..", "/etc", "out", "out/passwd", "/proc/self"):
            await refused(sandbox.download(path, max_bytes=2**20), PermissionError)


@check()
async def write_keeps_permissions(backend: SandboxBackend) -> None:
    """Overwriting a script keeps it executable, and a failed write keeps the old content."""
    async with opened(backend) as sandbox:
        await sandbox.write_file("run", b"#!/bin/sh\necho one\n")
        expect(await sandbox.exec(("chmod", "755", "run")), Outcome.OK)
        await sandbox.write_file("run", b"#!/bin/sh\necho two\n")
        assert (await sandbox.exec(("./run",))).stdout == "two\n", "it is not executable any more"
        await refused(sandbox.write_file("run", b"x" * (LIMITS.disk_bytes + 2**20)), OSError)
        assert (await sandbox.exec(("./run",))).stdout == "two\n", "a failed write changed it"


@check()
async def files_and_commands_at_once(backend: SandboxBackend) -> None:
    """Reads, writes and commands may all run at the same time."""

    async def one(sandbox: Sandbox, number: int) -> None:
        name, data = f"d{number % 4}/f{number}", os.urandom(20_000)
        await sandbox.write_file(name, data)
        result = await sandbox.exec(("wc", "-c", name))
        assert result.stdout.startswith("20000"), brief(result)
        assert await sandbox.read_file(name) == data, f"{name} came back changed"

    async with opened(backend) as sandbox:
        await asyncio.gather(*(one(sandbox, number) for number in range(16)))
