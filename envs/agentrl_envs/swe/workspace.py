"""The contents of a repair task's sandboxes: the agent's one, and a pristine one to grade in.

The repository lies in `repo` below the work directory. It comes from a `TreeStore`, or out of the
task's container image without its version history, which would hold the fix.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from agentrl.errors import DataError, GraderError, SandboxError
from agentrl.sandbox import Sandbox, SandboxLimits, SandboxSpec
from agentrl_envs.swe.record import ENVIRONMENT_FOLDER, REPO_FOLDER, STORE_FOLDER, SweTask
from agentrl_envs.swe.trees import Tree, TreeFile, TreeStore, regular_files

NewSandbox = Callable[[SandboxSpec], Awaitable[Sandbox]]
_STAMP = "environment.json"
_SETUP_S = 300.0
_READ_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The preparation of a sandbox for a task."""

    task: SweTask
    """The task."""
    folder: Path | None = None
    """The data set folder on this machine, with trees and test environment; None with an image."""
    image_root: str = "/testbed"
    """Where the repository lies in the image."""
    setup_patch: str = ""
    """Applied to the image's repository before the agent sees it: the bug, in SWE-smith."""
    test_files: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    """Folders of the image, by where in the repository they are put for grading only."""

    def spec(self, *, grade: bool = False, limits: SandboxLimits | None = None) -> SandboxSpec:
        """The spec of the agent's sandbox, or of the one that grades.

        Raises:
            DataError: the task names neither a tree that is there nor an image.
        """
        tree = (grade and self.task.grade_tree) or self.task.base_commit
        if self.folder is not None and not self.task.image:
            key = f"swe:{self.folder}:{tree}"
        elif self.task.image:
            what = (self.task.test_patch if grade else "", self.setup_patch, self.image_root)
            digest = hashlib.sha256("\0".join(what).encode()).hexdigest()[:16]
            key = f"swe:{self.task.image}:{digest}:{'grade' if grade else 'agent'}"
        else:
            raise DataError(
                f"task {self.task.instance_id!r}: it names no container image, and no data set "
                "folder with its tree is known; use a reader of agentrl_envs.swe, and give it "
                "images for rows of other data sets"
            )

        async def prepare(sandbox: Sandbox) -> None:
            if self.task.image:
                await self._from_image(sandbox, grade=grade)
            else:
                await self._from_store(sandbox, tree)

        return SandboxSpec(image=self.task.image, limits=limits, key=key, prepare=prepare)

    async def files(self, new_sandbox: NewSandbox, *, grade: bool = False) -> Tree:
        """The files the agent was given, or those it is graded in, as no agent has touched them.

        Args:
            new_sandbox: opens one to read from, where the tree comes from an image.
            grade: those to grade in.
        """
        if not self.task.image:
            return await self._tree((grade and self.task.grade_tree) or self.task.base_commit)
        sandbox = await new_sandbox(self.spec(grade=grade))
        try:
            found = await sandbox.download_tree(REPO_FOLDER, max_bytes=_READ_BYTES)
            return regular_files(found)
        finally:
            await sandbox.close()

    async def environment(self, sandbox: Sandbox) -> str:
        """The path at which programs of `sandbox` find the test environment; empty with an image.

        Raises:
            SandboxError: the sandbox failed.
        """
        if self.folder is None or self.task.image:
            return ""
        if await self._sees_environment(sandbox):
            return str(self.folder / ENVIRONMENT_FOLDER)
        return f"{sandbox.workdir}/{ENVIRONMENT_FOLDER}"

    async def _sees_environment(self, sandbox: Sandbox) -> bool:
        assert self.folder is not None
        stamp = str(self.folder / ENVIRONMENT_FOLDER / _STAMP)
        found = await sandbox.exec(("sh", "-c", 'test -r "$1"', "sh", stamp))
        return found.exit_code == 0

    async def _tree(self, tree: str) -> Mapping[str, TreeFile]:
        assert self.folder is not None
        return await asyncio.to_thread(_tree, self.folder / STORE_FOLDER, tree)

    async def _from_store(self, sandbox: Sandbox, tree: str) -> None:
        assert self.folder is not None
        await self._tree(tree)  # names a store that is damaged or not there before anything else
        await TreeStore(self.folder / STORE_FOLDER).upload(tree, sandbox, REPO_FOLDER)
        environment = self.folder / ENVIRONMENT_FOLDER
        if environment.is_dir() and not await self._sees_environment(sandbox):
            await sandbox.upload(environment, ENVIRONMENT_FOLDER)

    async def _from_image(self, sandbox: Sandbox, *, grade: bool) -> None:
        task = self.task
        await run_shell(
            sandbox,
            f"copy {self.image_root} of image {task.image}",
            'cp -R -P "$1" "$2" && rm -rf "$2/.git"',
            self.image_root,
            REPO_FOLDER,
        )
        await _apply(sandbox, self.setup_patch, f"the bug of {task.instance_id}")
        if grade:
            await _apply(sandbox, task.test_patch, f"test_patch of {task.instance_id}")
            for target, source in self.test_files.items():
                place = f"{REPO_FOLDER}/{target}"
                what = f"copy the tests {source} of image {task.image}"
                await run_shell(sandbox, what, 'rm -rf "$2"; cp -R -L "$1" "$2"', source, place)


@functools.lru_cache(maxsize=8)
def _tree(store: Path, tree: str) -> Mapping[str, TreeFile]:
    return TreeStore(store).get(tree)


async def _apply(sandbox: Sandbox, patch: str, what: str) -> None:
    if not patch.strip():
        return
    text = patch if patch.endswith("\n") else f"{patch}\n"
    # `git apply` outside of a repository changes nothing above the folder it runs in. It reads all
    # of its input, and `patch` takes an input that is empty for one that fits.
    command = (
        'cd "$1" && f=$(mktemp) && cat >"$f" && { command -v git >/dev/null && '
        'git apply -p1 --whitespace=nowarn "$f" || patch -p1 --forward --batch <"$f"; }; '
        's=$?; rm -f "$f"; exit $s'
    )
    await run_shell(sandbox, f"apply {what}", command, REPO_FOLDER, stdin=text.encode())


async def run_shell(
    sandbox: Sandbox, what: str, command: str, *words: str, stdin: bytes = b""
) -> None:
    """Run a shell command that sets a task up.

    Raises:
        GraderError: it failed; says what was to be done.
        SandboxError: the sandbox failed.
    """
    limit_s = min(_SETUP_S, sandbox.limits.wall_s)
    result = await sandbox.exec(("sh", "-c", command, "sh", *words), stdin=stdin, timeout_s=limit_s)
    if result.exit_code != 0:
        raise GraderError(
            f"could not {what}: {result.outcome}, exit status {result.exit_code}: "
            f"{(result.stderr or result.stdout)[-400:]!r}; the image or the row is not what the "
            "data set says, or the sandbox's limits (disk_mb, wall_s) are too small"
        )


async def put_changes(
    sandbox: Sandbox,
    written: Mapping[str, bytes],
    deleted: tuple[str, ...] = (),
    executable: Mapping[str, bool] = MappingProxyType({}),
) -> None:
    """Take changes over into the repository of a pristine sandbox.

    Args:
        sandbox: the pristine one.
        written: contents by path.
        deleted: paths of files that are gone.
        executable: written files that may be run now, or may no longer.

    Raises:
        SandboxError: a file could not be written.
    """
    if deleted:
        names = [f"{REPO_FOLDER}/{path}" for path in deleted]
        for start in range(0, len(names), 500):
            await sandbox.exec(("rm", "-f", "--", *names[start : start + 500]))
    for path, data in written.items():
        place = f"{REPO_FOLDER}/{path}"
        try:
            await sandbox.write_file(place, data)
        except (IsADirectoryError, NotADirectoryError, FileExistsError):
            # A folder that became a file, or the other way round.
            await _make_way(sandbox, path)
            try:
                await sandbox.write_file(place, data)
            except OSError as error:
                raise SandboxError(f"cannot write {place}: {error}") from error
        except OSError as error:
            raise SandboxError(f"cannot write {place}: {error}") from error
    for path, runs in executable.items():
        mode, place = "+x" if runs else "-x", f"{REPO_FOLDER}/{path}"
        done = await sandbox.exec(("chmod", mode, "--", place))
        if done.exit_code != 0:
            raise SandboxError(f"cannot make {place} {mode}: {done.stderr[-300:]!r}")


async def _make_way(sandbox: Sandbox, path: str) -> None:
    parts = path.split("/")
    parents = ["/".join((REPO_FOLDER, *parts[:n])) for n in range(1, len(parts))]
    script = 'rm -rf -- "$1"; shift; for d in "$@"; do test -f "$d" && rm -f -- "$d"; done; true'
    await sandbox.exec(("sh", "-c", script, "sh", f"{REPO_FOLDER}/{path}", *parents))
