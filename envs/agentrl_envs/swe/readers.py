"""Repair tasks of other data sets as tasks of `RepairTask`, each with one `dataset` section.

    dataset: {source: "agentrl_envs.swe:swe_bench", args: {path: verified.parquet}, split: test}

These data sets ship container images, which the Docker backend has to have. A model that can
read the image can read what lies in it: SWE-smith's hold the fixed source, and SWE-bench's older
ones the history; what of that reaches the agent's work directory is only the broken tree.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.errors import DataError
from agentrl.types import Task
from agentrl_envs.swe.changes import patched_files
from agentrl_envs.swe.record import SweTask, read_tasks
from agentrl_envs.swe.rows import absolute, read_rows
from agentrl_envs.swe.runners import (
    PYTEST,
    RunnersByRepo,
    UnsupportedRow,
    check_runners,
    runner_of,
)

logger = logging.getLogger(__name__)


def swe_tasks(
    path: str,
    split: str = "train",
    base_dir: Path | None = None,
    levels: Sequence[int] | None = None,
    kinds: Sequence[str] | None = None,
) -> Iterator[Task]:
    """Tasks made by `agentrl tasks make swe`: the folder it wrote.

    Args:
        path: the folder, or its `tasks.jsonl`.
        split: `train` or `test`; no library is in both. `all` takes both.
        base_dir: where a relative `path` starts.
        levels: only tasks of these levels, 0 to 4, see `make/difficulty.py`; None takes all.
        kinds: only tasks of these kinds, such as `several`; None takes all.

    Raises:
        DataError: no such file, a broken row, or no task of this split, these levels and kinds.
    """
    file = absolute(path, base_dir)
    folder = file if file.is_dir() else file.parent
    seen: dict[str, set[object]] = {"splits": set(), "levels": set(), "kinds": set()}
    found = False
    for record in read_tasks(file):
        level = int(record.figures.get("level", 0))
        for name, value in (("splits", record.split), ("levels", level), ("kinds", record.kind)):
            seen[name].add(value)
        if split not in (record.split, "all"):
            continue
        if (levels is None or level in levels) and (kinds is None or record.kind in kinds):
            found = True
            yield _task(record, record.split, {"folder": str(folder.resolve())})
    if not found:
        asked = [f"split {split!r}"]
        asked += [] if levels is None else [f"levels {list(levels)}"]
        asked += [] if kinds is None else [f"kinds {list(kinds)}"]
        here = ", ".join(f"{name} here: {sorted(map(str, there))}" for name, there in seen.items())
        raise DataError(f"{file}: no tasks of {', '.join(asked)}; {here}")


def swe_bench(
    path: str,
    split: str = "test",
    base_dir: Path | None = None,
    image: str = "swebench/sweb.eval.x86_64.{id}:latest",
    separator: str = "_1776_",
    skip_unsupported: bool = False,
    runners: RunnersByRepo | None = None,
) -> Iterator[Task]:
    """SWE-bench, Lite, Verified, and others with its columns (SWE-rebench, nemotron).

    Args:
        path: JSONL, JSON or parquet, or a folder of them.
        split: names the files of a folder.
        base_dir: where a relative `path` starts.
        image: of one task; `{id}` stands for the instance id. A column `image_name`,
            `docker_image` or `image` of the row comes first.
        separator: what stands for `__` of the instance id in the name of an image.
        skip_unsupported: leave out rows that cannot be played here, and say how many and why.
        runners: by repository, how its tests are run and their results are read; see `runners`.

    Raises:
        DataError: no such file, a row that cannot be played, or a runner that says nothing of use;
            names the row and the column, or the repository and the key.
    """
    check_runners(runners or {})

    def made(where: str, row: Mapping[str, Any]) -> Task:
        record = SweTask.from_row(row, where)
        named = _image_column(row) or image.replace(
            "{id}", record.instance_id.lower().replace("__", separator)
        )
        return _task(_in_image(record, named, where, runners or {}), split, {})

    return _made(read_rows(absolute(path, base_dir), split), made, path, skip_unsupported)


def swe_gym(
    path: str,
    split: str = "train",
    base_dir: Path | None = None,
    skip_unsupported: bool = False,
    runners: RunnersByRepo | None = None,
) -> Iterator[Task]:
    """SWE-Gym (https://arxiv.org/abs/2412.21139), full or Lite; arguments as `swe_bench`."""
    image = "xingyaoww/sweb.eval.x86_64.{id}:latest"
    return swe_bench(path, split, base_dir, image, "_s_", skip_unsupported, runners)


def swe_smith(
    path: str,
    split: str = "train",
    base_dir: Path | None = None,
    skip_unsupported: bool = False,
    runners: RunnersByRepo | None = None,
) -> Iterator[Task]:
    """SWE-smith (https://arxiv.org/abs/2504.21798): its `patch` makes the bug.

    Args:
        path: as for `swe_bench`.
        split: as for `swe_bench`.
        base_dir: as for `swe_bench`.
        skip_unsupported: as for `swe_bench`.
        runners: as for `swe_bench`.

    Raises:
        DataError: as for `swe_bench`; also a row without a problem statement.
    """
    check_runners(runners or {})

    def made(where: str, row: Mapping[str, Any]) -> Task:
        _need(row, ("instance_id", "repo", "patch", "problem_statement", "image_name"), where)
        bug = str(row["patch"])
        repo = str(row["repo"])
        commit = repo.rpartition(".")[2]
        # What names the source files is the bug's patch; turned round it is the fix.
        values = {**row, "base_commit": row.get("base_commit") or commit, "patch": reverse(bug)}
        record = SweTask.from_row(values, where)
        workspace = {"setup_patch": bug}
        made = _in_image(record, str(row["image_name"]), where, runners or {})
        return _task(made, split, workspace)

    return _made(read_rows(absolute(path, base_dir), split), made, path, skip_unsupported)


def r2e_gym(
    path: str,
    split: str = "train",
    base_dir: Path | None = None,
    skip_unsupported: bool = False,
) -> Iterator[Task]:
    """R2E-Gym (https://arxiv.org/abs/2504.07164), Subset, Lite or V1.

    The tests to fix are those that are to pass and did not in the log of the old commit; they lie
    in the image outside of the repository and are put into it for grading.

    Args:
        path: as for `swe_bench`.
        split: as for `swe_bench`.
        base_dir: as for `swe_bench`.
        skip_unsupported: as for `swe_bench`.

    Raises:
        DataError: as for `swe_bench`; also a row whose tests all passed before.
    """
    needed = ("repo_name", "docker_image", "commit_hash", "problem_statement")

    def made(where: str, row: Mapping[str, Any]) -> Task:
        _need(row, (*needed, "expected_output_json"), where)
        wanted = _json(row["expected_output_json"], "expected_output_json", where)
        passing = [name for name, state in wanted.items() if state == "PASSED"]
        before = _passed_before(row, where)
        broken = tuple(name for name in passing if name not in before)
        values = {
            "instance_id": f"{row['repo_name']}__{row['commit_hash']}",
            "repo": row["repo_name"],
            "base_commit": f"{row['commit_hash']}^",
            "patch": f"--- a/{_first(row.get('modified_files')) or 'unknown'}\n",
            "problem_statement": row["problem_statement"],
            "FAIL_TO_PASS": broken,
            "PASS_TO_PASS": tuple(name for name in passing if name in before),
        }
        record = dataclasses.replace(
            SweTask.from_row(values, where),
            image=str(row["docker_image"]),
            python_path=(".",),
            test_command=(".venv/bin/python", *PYTEST, "r2e_tests"),
            test_paths=("r2e_tests",),
        )
        return _task(record, split, {"test_files": {"r2e_tests": "/root/r2e_tests"}})

    return _made(read_rows(absolute(path, base_dir), split), made, path, skip_unsupported)


def _made(
    rows: Iterable[tuple[str, Mapping[str, Any]]],
    make: Callable[[str, Mapping[str, Any]], Task],
    path: str,
    skip: bool,
) -> Iterator[Task]:
    """The tasks of rows; those that cannot be made are counted by their reason, or raise."""
    left_out: Counter[str] = Counter()
    first: dict[str, str] = {}
    count = 0
    for where, row in rows:
        try:
            task = make(where, row)
        except DataError as error:
            if not skip:
                raise
            what = "its tests cannot be run" if isinstance(error, UnsupportedRow) else "no task"
            reason = f"{row.get('repo') or 'a row'} ({what})"
            left_out[reason] += 1
            first.setdefault(reason, str(error))
            continue
        count += 1
        yield task
    if left_out:
        reasons = "".join(
            f"\n  {n} of {why}, such as {first[why]}" for why, n in left_out.most_common()
        )
        words = f"{path}: {left_out.total()} of {left_out.total() + count} rows left out:{reasons}"
        if not count:
            raise DataError(words)
        logger.warning("%s", words)


def reverse(patch: str) -> str:
    """A unified diff the other way round.

    Example:
        >>> print(reverse("--- a/x\\n+++ b/x\\n@@ -1,2 +1 @@\\n one\\n-two\\n"), end="")
        --- a/x
        +++ b/x
        @@ -1 +1,2 @@
         one
        +two
    """
    out: list[str] = []
    for line in patch.splitlines():
        if line.startswith("--- ") or line.startswith("+++ "):
            out.append(_swapped_name(line))
            if line.startswith("+++ ") and len(out) > 1:
                out[-2:] = [out[-1], out[-2]]
        elif match := _HUNK.match(line):
            out.append(f"@@ -{match[2]} +{match[1]} @@{match[3]}")
        elif line.startswith("-"):
            out.append(f"+{line[1:]}")
        elif line.startswith("+"):
            out.append(f"-{line[1:]}")
        else:
            out.append(line)
    return "".join(f"{line}\n" for line in out)


_HUNK = re.compile(r"@@ -(\S+) \+(\S+) @@(.*)")


def _swapped_name(line: str) -> str:
    mark, name = line[:4], line[4:]
    if name.startswith(("a/", "b/")):
        name = ("b/" if name[0] == "a" else "a/") + name[2:]
    return ("+++ " if mark == "--- " else "--- ") + name


def _task(record: SweTask, split: str, workspace: Mapping[str, Any]) -> Task:
    row = record.to_row()
    # Not of the label: a task whose solve rate was written down is still the same task.
    figures = {name: int(n) if n == int(n) else n for name, n in row.pop("figures").items()}
    return Task(
        id=record.instance_id,
        prompt=record.problem_statement,
        label={**row, "workspace": dict(workspace)},
        metadata={
            "repo": record.repo,
            "kind": record.kind,
            "operator": record.operator,
            "style": record.style,
            **figures,
        },
        split=split,
    )


def _in_image(record: SweTask, image: str, where: str, runners: RunnersByRepo) -> SweTask:
    """A row of the SWE-bench family with what our environment has to know beside its columns."""
    names = (*record.FAIL_TO_PASS, *record.PASS_TO_PASS)
    tests = tuple(dict.fromkeys(name.partition("::")[0] for name in names if "::" in name))
    changed = tuple(name for name in patched_files(record.test_patch) if name.endswith(".py"))
    runner = runner_of(record, changed, where, runners)
    return dataclasses.replace(
        record,
        image=image,
        python_path=record.python_path or (".", "src", "lib"),
        test_paths=record.test_paths or tuple(dict.fromkeys((*tests, *changed))),
        test_command=record.test_command or runner.command,
        test_log=record.test_log or runner.log,
        test_env=record.test_env or dict(runner.env),
    )


def _image_column(row: Mapping[str, Any]) -> str:
    return next((str(row[n]) for n in ("image_name", "docker_image", "image") if row.get(n)), "")


def _need(row: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    missing = [name for name in names if not row.get(name)]
    if missing:
        raise DataError(
            f"{where}: missing or empty: {', '.join(missing)}; expected {', '.join(names)}; "
            f"columns here: {', '.join(map(str, row))}"
        )


def _json(value: Any, name: str, where: str) -> Mapping[str, Any]:
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise DataError(f"{where}: {name} is not JSON: {error}") from None
    if not isinstance(found, Mapping):
        raise DataError(f"{where}: {name} is {type(found).__name__}; expected an object")
    return found


def _passed_before(row: Mapping[str, Any], where: str) -> frozenset[str]:
    """Tests that passed at the old commit, by the names of `expected_output_json`."""
    if not row.get("execution_result_content"):
        return frozenset()
    log = _json(row["execution_result_content"], "execution_result_content", where)
    lines = str(log.get("old_commit_res_stdout") or "").splitlines()
    names = (line.removeprefix("PASSED ").strip() for line in lines if line.startswith("PASSED "))
    return frozenset(".".join(name.split("::")[1:]) for name in names)


def _first(value: Any) -> str:
    return str(value[0]) if isinstance(value, (list, tuple)) and value else ""
