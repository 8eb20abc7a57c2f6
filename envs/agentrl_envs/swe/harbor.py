"""Harbor task directories (https://harborframework.com/docs/tasks): read, played and graded.

    NAME/task.toml, instruction.md, environment/, tests/test.sh, solution/

Our sandboxes have a read-only root, so the image's folder is copied below the work directory, and
where instruction and tests say `/app`, `/tests` or `/logs` they are given the place it has here.
The tests run in a fresh sandbox on a copy of the agent's folder: what it did elsewhere, or with
root's rights, is not there. The score is what `tests/test.sh` writes, as Harbor has it, so it is as
proof against cheating as these tests are. An object has to call its number `reward` or
`score`, also where it holds no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.env import Observation, Solution, StepResult
from agentrl.errors import DataError, GraderError, SandboxError, some_of
from agentrl.sandbox import FileTree, Sandbox, SandboxLimits, SandboxSpec, TreeEntry
from agentrl.types import Explanation, Message, Task
from agentrl.types.solved import is_solved
from agentrl_envs.fault import ReadOnce, graded
from agentrl_envs.swe.env import RepairTask
from agentrl_envs.swe.gold import script_solution
from agentrl_envs.swe.record import REPO_FOLDER
from agentrl_envs.swe.rows import absolute
from agentrl_envs.swe.workspace import run_shell

_GRADE_FOLDER = "grade"
_MAX_BYTES = 128 * 2**20
_MAX_FILES = 50_000
_OUTPUT_CHARS = 8_000
_SCORE_NAMES = ("reward", "score")
"""Names of the score in an object that tests write, the first one there is."""
_TEXT_OR_NUMBER = re.compile(
    r'"(?:[^"\\]|\\.)*"|((?<![\w.])[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))', re.ASCII
)
_HERE = "@AGENTRL_WORK_DIRECTORY@"
"""Stands in a solution for the work directory, which is known only where it runs."""
_WORKDIR = re.compile(r"^\s*WORKDIR\s+(\S+)", re.MULTILINE | re.IGNORECASE)
_SYSTEM = "You work in the folder {} with the tools you are given. Call submit when you are done."


def harbor_tasks(
    path: str, split: str = "train", base_dir: Path | None = None, image: str = ""
) -> Iterator[Task]:
    """The task directories in a folder, in the order of their names.

    Args:
        path: a folder of task directories, or one of them.
        split: given to every task.
        base_dir: where a relative `path` starts.
        image: container image of tasks whose `task.toml` names none; `{name}` stands for the
            directory. `none` starts from the files of `environment/` instead of an image.

    Raises:
        DataError: no task directories, or one without its files; names it.
    """
    root = absolute(path, base_dir)
    if not root.is_dir():
        raise DataError(f"{root} does not exist; expected a folder of Harbor task directories")
    single = (root / "task.toml").is_file()
    folders = [root] if single else sorted(p.parent for p in root.glob("*/task.toml"))
    if not folders:
        raise DataError(f"{root}: no Harbor tasks here; expected NAME/task.toml")
    for folder in folders:
        yield _task(folder, split, image)


class HarborTask(RepairTask):
    """Do what a Harbor task asks; its own tests give the score.

    Takes the arguments of `RepairTask`; `reward: all` needs the full score, 1, `fraction` takes it
    as it is, but at least 0 and at most 1: what a program can write must have bounds.
    `task_prompt` and `system_prompt` are not used.
    """

    needs_label = True

    async def reset(self, task: Task) -> Observation:
        """Lay the task's folder out and show the instruction.

        Raises:
            DataError: the label is not a Harbor task.
            SandboxError: the sandbox failed.
        """
        label = task.label if isinstance(task.label, Mapping) else {}
        missing = [name for name in ("folder", "root", "image", "verifier_s") if name not in label]
        if missing:
            raise DataError(f"task {task.id!r} is no Harbor task: its label has no {missing}")
        self._begin()
        self._label: Mapping[str, Any] = label
        sandbox = await self.context.open_sandbox(self._spec())
        here = f"{sandbox.workdir}/{REPO_FOLDER}"
        text = _moved(str(task.prompt), {str(label["root"]): here})
        system = Message(role="system", content=_SYSTEM.format(here))
        return Observation(content=(system, Message(role="user", content=text)))

    def solution(self, task: Task) -> Solution | None:
        """`solution/solve.sh`, written and run with the tool `bash`; None where there is none."""
        folder, root = Path(task.label["folder"]) / "solution", str(task.label["root"])
        if not (folder / "solve.sh").is_file():
            return None
        places = {root: f"{_HERE}/{REPO_FOLDER}", "/solution": f"{_HERE}/solution"}
        files = {
            f"solution/{file.relative_to(folder).as_posix()}": _moved_bytes(
                file.read_bytes(), places
            )
            for file in sorted(folder.rglob("*"))
            if file.is_file()
        }
        return script_solution(files, "solution/solve.sh", _HERE, self.context.tools)

    def _spec(self) -> SandboxSpec:
        label = self._label

        async def prepare(sandbox: Sandbox) -> None:
            if label["image"]:
                what = f"copy {label['root']} of image {label['image']}"
                await run_shell(sandbox, what, 'cp -R -P "$1" "$2"', label["root"], REPO_FOLDER)
            else:
                await sandbox.upload(Path(label["folder"]) / "environment", REPO_FOLDER)
                await sandbox.exec(("rm", "-f", f"{REPO_FOLDER}/Dockerfile"))

        key = f"harbor:{label['folder']}:{label['image']}"
        return SandboxSpec(image=str(label["image"]), key=key, prepare=prepare)

    async def _judge(self, sandbox: Sandbox, submitted: bool, spent: bool) -> StepResult:
        try:
            left = ReadOnce(read=lambda: _left(sandbox), sandbox=sandbox)
            found = await graded(
                lambda: self._score(left, sandbox.limits), lambda: self._untouched(left)
            )
        except _NoScore as error:
            raise GraderError(str(error)) from error
        grade = found.verdict or _HarborGrade(reward=0.0, output="")
        score = min(1.0, max(0.0, grade.reward))
        earned = score if self.reward == "fraction" else float(is_solved(score))
        parts = self._parts(earned)
        return StepResult(
            rewards=sum(parts.values()),
            done=True,
            scores=score,
            reward_parts=parts,
            extra_logs={
                "solved": float(is_solved(score)),
                "calls": float(self._calls),
                "submitted": float(submitted),
                "budget_spent": float(spent),
                **found.logs,
            },
            explanation=Explanation(
                reference=self._reference(),
                grader_output=grade.output,
                reason=f"tests/test.sh gave {grade.reward:g}.{_without(left)}"
                if found.verdict is not None
                else "What the agent did keeps the tests from running.",
            ),
        )

    def _reference(self) -> str:
        """The script of the task's own solution, as far as it is text."""
        script = Path(self._label["folder"]) / "solution" / "solve.sh"
        return script.read_text(encoding="utf-8", errors="replace") if script.is_file() else ""

    async def _untouched(self, left: ReadOnce[FileTree | None]) -> None:
        """The same steps on what the agent was given; fails as well where that is what it left."""
        fresh = await self.context.new_sandbox(self._spec())
        try:
            given = await fresh.download_tree(REPO_FOLDER, max_bytes=2**40)
        finally:
            await fresh.close()
        if left.found == [given]:
            raise _NoScore("the agent changed nothing that the tests read")
        await self._tested(given, fresh.limits)

    async def _score(self, left: ReadOnce[FileTree | None], limits: SandboxLimits) -> _HarborGrade:
        files = await left.get()
        if files is None:
            return _HarborGrade(reward=0.0, output="The agent's folder cannot be read.")
        return await self._tested(files, limits)

    async def _tested(self, left: FileTree, limits: SandboxLimits) -> _HarborGrade:
        """The score of a folder."""
        label = self._label
        wall_s = self.test_wall_s or float(label["verifier_s"])
        limits = dataclasses.replace(limits, wall_s=max(limits.wall_s, wall_s))
        fresh = await self.context.new_sandbox(dataclasses.replace(self._spec(), limits=limits))
        try:
            base = f"{fresh.workdir}/{_GRADE_FOLDER}"
            places = {
                str(label["root"]): f"{fresh.workdir}/{REPO_FOLDER}",
                "/tests": f"{base}/tests",
                "/logs": f"{base}/logs",
            }
            tests = Path(label["folder"]) / "tests"
            # In a thread: tests may bring large files.
            grader = await asyncio.to_thread(_grader_files, tests, places)
            # Files that the agent deleted must not come back.
            await fresh.exec(("rm", "-rf", REPO_FOLDER))
            await fresh.upload_tree(left, REPO_FOLDER)
            await fresh.upload_tree(grader, _GRADE_FOLDER)
            result = await fresh.exec(
                ("sh", "-c", 'cd "$1" && exec bash "$2"/tests/test.sh', "sh", REPO_FOLDER, base),
                timeout_s=wall_s,
            )
            try:
                reward = await _reward(fresh)
            except _NoScore as error:
                raise _NoScore(
                    f"{tests / 'test.sh'} {error}: {result.outcome}, exit status "
                    f"{result.exit_code}: {(result.stderr or result.stdout)[-400:]!r}"
                ) from None
            output = "\n".join(filter(None, (result.stdout, result.stderr)))
            return _HarborGrade(reward=reward, output=output[-_OUTPUT_CHARS:])
        finally:
            await fresh.close()


async def _left(agent: Sandbox) -> FileTree | None:
    """The agent's folder; None if it is not one that can be graded, which is the agent's doing."""
    try:
        found = await agent.download_tree(REPO_FOLDER, max_bytes=_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError):
        return None  # nothing else has been in this sandbox
    except OSError as error:
        raise SandboxError(f"the agent's folder cannot be read: {error}") from error
    return None if len(found.entries) > _MAX_FILES else found


def _without(left: ReadOnce[FileTree | None]) -> str:
    """A sentence on what cannot be carried to the tests; empty where there is no such thing."""
    names = [name for tree in left.found if tree is not None for name in tree.left_out]
    shown = some_of(map(ascii, names), 20)
    return f" Pipes, sockets and devices were left out: {shown}." if names else ""


def _grader_files(tests: Path, places: Mapping[str, str]) -> FileTree:
    """The tests with the places they have here, and the folder of their score."""
    folders = ("", "tests", "logs", "logs/verifier")
    entries = {name: TreeEntry(kind="folder", mode=0o755) for name in folders}
    for path in sorted(tests.rglob("*")):
        name = f"tests/{path.relative_to(tests).as_posix()}"
        if path.is_dir():
            entries[name] = TreeEntry(kind="folder", mode=0o755)
        elif path.is_file():
            data = _moved_bytes(path.read_bytes(), places)
            entries[name] = TreeEntry(kind="file", mode=0o755, data=data)
    return FileTree(entries=entries)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _HarborGrade:
    """Score of a folder, and the end of what its tests printed."""

    reward: float
    """Number that the tests wrote, as it is."""
    output: str
    """For readers."""


class _NoScore(SandboxError):
    """The tests ended without a score: the doing of the agent, if they give one without it."""


async def _reward(sandbox: Sandbox) -> float:
    """The number that the tests wrote.

    Raises:
        _NoScore: there is none, or none that can be read.
    """
    found: list[str] = []
    for name in ("reward.txt", "reward.json"):
        try:
            text = (await sandbox.read_file(f"{_GRADE_FOLDER}/logs/verifier/{name}")).decode()
            return read_reward(text)
        except (ValueError, RecursionError) as error:
            found.append(f"wrote a {name} that cannot be read: {error}")
        except OSError:
            continue
    raise _NoScore("; ".join(found) or "wrote no /logs/verifier/reward.txt or reward.json")


def read_reward(text: str) -> float:
    """The finite number that a grader wrote, alone or under its name in an object of JSON.

    Numbers are those of any language, as the shell's `bc` writes `.50`.

    Raises:
        ValueError: there is none; says what there is.
        RecursionError: it is JSON too deep to read.

    Example:
        >>> read_reward(" +1.\\n"), read_reward('{"time": 3, "reward": .50}')
        (1.0, 0.5)
    """
    value: Any = None
    with contextlib.suppress(ValueError):
        value = json.loads(_TEXT_OR_NUMBER.sub(_as_json, text))
    if isinstance(value, Mapping):
        name = next((name for name in _SCORE_NAMES if name in value), None)
        if name is None:
            names = " nor ".join(_SCORE_NAMES)
            raise ValueError(f"it names {sorted(value)[:8]}, but neither {names}")
        value = value[name]
    try:
        reward = float(value)
    except (TypeError, ValueError, OverflowError):
        reward = math.nan
    if not math.isfinite(reward):
        raise ValueError(f"it holds {text[:80]!r}, expected one finite number")
    return reward


def _as_json(match: re.Match[str]) -> str:
    number = match[1]
    return match[0] if number is None else json.dumps(float(number))


def _task(folder: Path, split: str, image: str) -> Task:
    for name in ("task.toml", "instruction.md", "tests/test.sh"):
        if not (folder / name).is_file():
            raise DataError(f"{folder}: a Harbor task needs {name}, and there is none")
    try:
        config = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
        instruction = (folder / "instruction.md").read_text(encoding="utf-8")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{folder}: task.toml or instruction.md: {error}") from error
    environment = _section(config, "environment")
    named = str(environment.get("docker_image") or image.replace("{name}", folder.name))
    if not named:
        raise DataError(
            f"{folder / 'task.toml'}: [environment] names no docker_image; build one with 'docker "
            f"build -t harbor-{folder.name} {folder / 'environment'}' and set dataset.args.image "
            "to 'harbor-{name}', or to 'none' to start from the files of environment/"
        )
    dockerfile = folder / "environment" / "Dockerfile"
    text = dockerfile.read_text(encoding="utf-8") if dockerfile.is_file() else ""
    root = environment.get("workdir") or (_WORKDIR.findall(text) or ["/app"])[-1]
    verifier_s = _section(config, "verifier").get("timeout_sec", 600.0)
    if not isinstance(verifier_s, int | float):
        raise DataError(f"{folder / 'task.toml'}: verifier.timeout_sec is {verifier_s!r}")
    label = {
        "folder": str(folder.resolve()),
        "image": "" if named == "none" else named,
        "root": str(root),
        "verifier_s": float(verifier_s),
    }
    metadata = json.loads(json.dumps(_section(config, "metadata"), default=str))
    return Task(id=folder.name, prompt=instruction, label=label, metadata=metadata, split=split)


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}


def _moved(text: str, places: Mapping[str, str]) -> str:
    for old, new in places.items():
        text = re.sub(rf"(?<![\w./-]){re.escape(old)}(?![\w-])", lambda _, new=new: new, text)
    return text


def _moved_bytes(data: bytes, places: Mapping[str, str]) -> bytes:
    try:
        return _moved(data.decode(), places).encode()
    except UnicodeDecodeError:
        return data
