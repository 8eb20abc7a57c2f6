"""What a task is about may be a mode, a link or an empty folder: all of them reach the tests."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest
from agentrl_envs.swe.changes import patched_files, source_changes
from agentrl_envs.swe.final_diff import diff_for_readers
from agentrl_envs.swe.patches import apply_patch, make_patch
from agentrl_envs.swe.record import REPO_FOLDER
from agentrl_envs.swe.trees import TreeFile, regular_files
from agentrl_envs.swe.workspace import put_changes

from agentrl.errors import DataError, SandboxError
from agentrl.sandbox import FileTree, SandboxLimits, TreeEntry
from tests.envs.local_sandbox import LocalSandbox
from tests.envs.strongest_backend import strongest_backend
from tests.envs.swe.test_grading_parts import record
from tests.envs.swe.test_harbor import load, play, write

DONE = """mkdir -p data/raw; ln -s given.txt latest; ln -s /nowhere/at/all gone; ln -s data folder
echo k >key; chmod 600 key; echo x >plain; echo '#!/bin/sh' >run; chmod 755 run; touch 'a
b'; rm given.txt; printf x >"$(printf 'c\\377')"; chmod 555 data; mkfifo pipe"""
WANTED = """cd /app && test -d data/raw && test "$(readlink latest)" = given.txt &&
test ! -e latest && test "$(readlink gone)" = /nowhere/at/all && test -d folder/raw &&
test -x run && test ! -x plain &&
test "$(stat -c %a key data)" = '600
555' && test "$(ls | grep -c '^a$')" = 1 && test -e "$(printf 'c\\377')" && test ! -e pipe"""


async def test_harbor_tests_see_what_the_agent_made(tmp_path) -> None:
    """Fails if a folder without files, a link or a mode is lost on the way to the tests."""
    test = f"mkdir -p /logs/verifier\nif {WANTED}; then r=1; else r=0; fi\n"
    write(tmp_path / "tasks/hello", test=f"{test}echo $r >/logs/verifier/reward.txt\n")
    (task,) = load(tmp_path / "tasks", image="none")
    backend = strongest_backend()
    try:
        _, step = await play(backend, task, DONE)
    finally:
        await backend.close()
    assert step.rewards == 1.0, step.explanation
    assert step.explanation is not None
    assert "left out: 'pipe'" in step.explanation.reason


async def test_a_sandbox_of_ones_own_moves_trees_by_tar() -> None:
    """Fails if a backend that only runs commands and reads files cannot be graded in."""
    one, two = LocalSandbox(), LocalSandbox()
    script = f"mkdir d && cd d && touch given.txt && {DONE.replace(chr(10), '; ', 1)}; ln key same"
    assert (await one.exec(("sh", "-c", script))).exit_code == 0
    tree = await one.download_tree("d", max_bytes=100)
    assert tree.left_out == ("pipe",)
    await two.upload_tree(tree, "e")
    assert await two.download_tree("e", max_bytes=100) == dataclasses.replace(tree, left_out=())
    assert tree.entries["gone"] == TreeEntry(kind="link", mode=0o777, data=b"/nowhere/at/all")
    assert (tree.entries["data/raw"].kind, tree.entries["data"].mode) == ("folder", 0o555)
    assert tree.entries["same"] == tree.entries["key"]
    with pytest.raises(ValueError, match="max_bytes=1"):
        await one.download_tree("d", max_bytes=1)
    with pytest.raises(FileNotFoundError):
        await one.download_tree("none", max_bytes=1)
    with pytest.raises(PermissionError):
        await two.upload_tree(tree, "../f")
    assert sorted((await two.exec(("ls", "-A"))).stdout.split()) == ["e"]
    await asyncio.gather(one.close(), two.close())


TAR = """#!/bin/sh
test "$1" = -cf || exec {tar} "$@"
{tar} "$@"
echo "{said}" >&2
exit {status}
"""


@pytest.mark.parametrize(
    ("status", "said", "reads"),
    [
        (1, "tar: ./log: file changed as we read it", True),
        (1, "tar: ./tmp1: File removed before we read it", True),
        (1, "tar: can't open './tmp1': No such file or directory\ntar: error exit delayed", True),
        (1, "tar: can't open './key': Permission denied\ntar: error exit delayed", False),
        (1, "tar: can't change directory to 'd': No such file or directory", False),
        (2, "tar: ./key: Cannot open: Permission denied", False),
    ],
)
async def test_a_file_that_changes_while_it_is_read_ends_no_transfer(
    tmp_path: Path, status: int, said: str, reads: bool
) -> None:
    """Fails if the temporary file of a server costs the rollout, or a real error does not."""
    tar = tmp_path / "tar"
    tar.write_text(TAR.format(tar=shutil.which("tar"), said=said, status=status))
    tar.chmod(0o755)

    class WithTar(LocalSandbox):
        async def exec(self, command, **given):
            return await super().exec(("env", f"PATH={tmp_path}:/usr/bin:/bin", *command), **given)

    one = WithTar()
    assert (await one.exec(("sh", "-c", "mkdir d && echo x > d/a"))).exit_code == 0
    if reads:
        tree = await one.download_tree("d", max_bytes=100)
        assert tree.files()["a"].data == b"x\n"
    else:
        with pytest.raises(SandboxError, match="tar cannot read"):
            await one.download_tree("d", max_bytes=100)
    await one.close()


OLD = {"bin/run": TreeFile(data=b"#!/bin/sh\n"), "lib/core.py": TreeFile(data=b"x\n")}
NEW = {
    "bin/run": TreeFile(data=b"#!/bin/sh\n", executable=True),
    "bin/new": TreeFile(data=b"#!/bin/sh\necho\n", executable=True),
    "bin/empty": TreeFile(data=b"", executable=True),
    "lib/core.py": TreeFile(data=b"x\n"),
}


def test_a_mode_and_a_new_script_are_a_change() -> None:
    """Fails if a patch of modes is empty, does not apply, or names no file."""
    patch = make_patch(OLD, NEW)
    assert "old mode 100644\nnew mode 100755\n" in patch
    assert apply_patch(OLD, patch) == NEW
    assert apply_patch(NEW, make_patch(NEW, OLD)) == OLD
    assert patched_files(patch) == ["bin/empty", "bin/new", "bin/run"]
    renamed = "diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n"
    assert patched_files(renamed) == ["x", "y"]
    moved = "diff --git a/a/x b/b/y\nsimilarity index 100%\nrename from a/x\nrename to b/y\n"
    mode = "diff --git a/a/z b/a/z\nold mode 100644\nnew mode 100755\n"
    lines = "diff --git a/b/w b/b/w\n--- a/b/w\n+++ b/b/w\n@@ -1 +1 @@\n-x\n+y\n"
    assert patched_files(moved + mode + lines) == ["a/x", "b/y", "a/z", "b/w"]


def test_renames_and_copies_take_the_file_as_git_does(tmp_path: Path) -> None:
    """Fails if a renamed file stays where it was, or two that change places are one."""
    text = "".join(f"line {n}\n" for n in range(200))
    old = {
        "lib/a.py": TreeFile(data=text.encode()),
        "lib/b.py": TreeFile(data=text.upper().encode(), executable=True),
        "lib/blob": TreeFile(data=bytes(range(256)) * 8),
        "lib/tool": TreeFile(data=(text * 2).encode()),
        "lib/keep": TreeFile(data=text.replace("l", "k").encode()),
    }
    new = {
        "lib/b.py": TreeFile(data=text.replace("line 3", "line three").encode()),
        "lib/a.py": TreeFile(data=text.upper().encode(), executable=True),
        "bin/blob": old["lib/blob"],
        "bin/tool": TreeFile(data=(text * 2).encode(), executable=True),
        "lib/keep": old["lib/keep"],
        "lib/copy": TreeFile(data=old["lib/keep"].data + b"more\n"),
    }

    def git(*words: str) -> str:
        told = subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)
        return told.stdout.decode()

    git("init", "-q")
    for tree in (old, new):
        for path in (*old, *new):
            (tmp_path / path).unlink(missing_ok=True)
        for path, entry in tree.items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_bytes(entry.data)
            (tmp_path / path).chmod(0o755 if entry.executable else 0o644)
        git("add", "-A")
        git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")
    patch = git("diff", "-B", "-M", "-C", "-C", "HEAD~", "HEAD")
    assert patch.count("rename from ") == 4
    assert patch.count("copy from ") == 1
    assert apply_patch(old, patch) == new
    back = git("diff", "-M", "HEAD", "HEAD~")
    assert apply_patch(new, back) == old


@pytest.mark.parametrize(
    ("head", "named"),
    [
        ("new file mode 100644\nindex 000..123\nBinary files /dev/null and b/x differ\n", "binary"),
        ("old mode 100644\nnew mode 100755\nBinary files a/x and b/x differ\n", "binary"),
        ("new file mode 100644\nGIT binary patch\nliteral 1\nIcmZ\n", "binary"),
        ("new file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+y\n", "120000"),
    ],
)
def test_what_no_diff_of_text_carries_is_refused(head: str, named: str) -> None:
    """Fails if a binary becomes an empty file, or a link a file that holds its target."""
    tree = {} if head.startswith("new file") else {"x": TreeFile(data=b"y\n")}
    with pytest.raises(DataError, match=f"a/x b/x.*{named}"):
        apply_patch(tree, f"diff --git a/x b/x\n{head}")


async def test_the_mode_of_a_repair_reaches_the_pristine_tree() -> None:
    task = dataclasses.replace(record(), patch=make_patch(OLD, NEW))
    changes = source_changes(task, OLD, NEW)
    assert changes.executable == {"bin/run": True, "bin/new": True, "bin/empty": True}
    assert set(changes.written) == set(changes.executable)
    given = {path: entry.data for path, entry in OLD.items()}
    assert diff_for_readers(changes, given) == make_patch(OLD, NEW)
    assert source_changes(task, NEW, OLD).executable == {"bin/run": False}
    backend = strongest_backend()
    try:
        sandbox = await backend.create(SandboxLimits())
        entries = {
            path: TreeEntry(kind="file", mode=0o755 if entry.executable else 0o644, data=entry.data)
            for path, entry in OLD.items()
        }
        folders = {path: TreeEntry(kind="folder", mode=0o755) for path in ("", "bin", "lib")}
        await sandbox.upload_tree(FileTree(entries=folders | entries), REPO_FOLDER)
        await put_changes(sandbox, changes.written, changes.deleted, changes.executable)
        found = regular_files(await sandbox.download_tree(REPO_FOLDER, max_bytes=99))
    finally:
        await backend.close()
    assert found == NEW
