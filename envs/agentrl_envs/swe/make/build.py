"""Making a data set of repair tasks: which libraries give how many, and what lies on the disk.

A folder holds `tasks.jsonl`, `store/`, `environment/` and `work/`; the last holds what a second run
of the same command need not do again, and may be removed when the tasks are done. `tasks.jsonl` is
written anew as tasks are found, so what a killed run leaves is whole.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, DataError, SandboxError
from agentrl.sandbox import SandboxBackend, SandboxLimits
from agentrl.served import ServedModel, ServedSettings
from agentrl_envs.swe.make.declared import declared_packages
from agentrl_envs.swe.make.difficulty import STYLES
from agentrl_envs.swe.make.environment import DEFAULT_PACKAGES, Environment, make_environment
from agentrl_envs.swe.make.index import PYPI, Index, NoAnswer
from agentrl_envs.swe.make.issue import ServedWriter
from agentrl_envs.swe.make.journal import only_one
from agentrl_envs.swe.make.library import Rules, Workshop, canonical
from agentrl_envs.swe.make.procedural import procedural_rows
from agentrl_envs.swe.make.progress import MakeProgress
from agentrl_envs.swe.make.releases import release_rows
from agentrl_envs.swe.make.rows import Telling
from agentrl_envs.swe.make.settings import check_settings, made_so_far, replace_file, write_settings
from agentrl_envs.swe.make.suite import SuiteRunner
from agentrl_envs.swe.record import ENVIRONMENT_FOLDER, STORE_FOLDER, TASKS_FILE, SweTask
from agentrl_envs.swe.trees import TreeStore

KINDS = ("procedural", "several", "removed", "releases")
LIMITS = SandboxLimits(
    wall_s=600.0, memory_bytes=2**30, processes=64, disk_bytes=256 * 2**20, open_files=512
)
"""Limits of the sandboxes that tests are run in."""
_WORK = "work"
_WRITE_S = 2.0
"""Between two writes of the tasks so far, each of which writes all of them."""
_SAME_ERRORS = 3
"""So many libraries in a row with one error of the sandboxes: the next would fare no better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeRequest:
    """The tasks to be made, and the folder for them."""

    out: Path
    """Folder of the data set; made if it is not there."""
    packages: tuple[str, ...]
    """Libraries, as `name` or `name==version`."""
    count: int = 200
    """How many tasks in all; less if the libraries give less."""
    kind: str = "procedural"
    """One of `KINDS`; or several but `releases`, joined by commas, which take turns."""
    style: str = "tests"
    """What problem texts are, one of `STYLES`."""
    writer_url: str = ""
    """Where a model that writes natural texts is served; empty takes templates."""
    writer_model: str = ""
    """Name of that model."""
    writer_key_env: str = ""
    """Environment variable with the key of that server; empty for none."""
    seed: int = 0
    """Chooses bugs, and which libraries are held out."""
    held_out: float = 0.2
    """Share of the libraries whose tasks are in split `test`."""
    per_function: int = 2
    """Most procedural tasks of one function."""
    most_pairs: int = 8
    """Most pairs of releases looked at per library."""
    index: str = PYPI
    """Package index, or a folder of source archives."""
    test_packages: tuple[str, ...] = DEFAULT_PACKAGES
    """What the test environment is made of."""
    rules: Rules = field(default_factory=Rules)
    """Rules a library must meet."""
    jobs: int = 2
    """Sandboxes at once."""

    def settings(self) -> dict[str, Any]:
        """The settings that decide which tasks are made, as JSON knows them."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
            if name not in ("out", "count", "jobs", "writer_url", "writer_key_env")
        }

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that `kind` names."""
        return tuple(part.strip() for part in self.kind.split(","))

    def check(self) -> None:
        """Refuse what cannot be.

        Raises:
            ConfigError: names the value and what is expected.
        """
        for kind in self.kinds:
            if kind not in KINDS:
                raise ConfigError(
                    f"kind {kind!r}: expected one of {', '.join(KINDS)}; all but the last may be "
                    "joined by commas"
                )
        if "releases" in self.kinds and len(self.kinds) > 1:
            raise ConfigError(
                f"kind {self.kind!r}: releases are made by themselves; give them another --out"
            )
        if self.style not in STYLES:
            raise ConfigError(f"style {self.style!r}: expected one of {', '.join(STYLES)}")
        if bool(self.writer_url) != bool(self.writer_model):
            raise ConfigError(
                f"writer-url {self.writer_url!r} and writer-model {self.writer_model!r}: expected "
                "both, or none for texts by template"
            )
        if self.writer_url and self.style != "natural":
            raise ConfigError(f"writer-url writes texts of --style natural, not of {self.style}")
        if not self.packages:
            raise ConfigError("no packages: name libraries with --package, as on PyPI")
        if self.count < 1 or self.jobs < 1 or self.per_function < 1 or self.most_pairs < 1:
            raise ConfigError(
                f"count {self.count}, jobs {self.jobs}, per-function {self.per_function} and "
                f"pairs {self.most_pairs}: expected at least 1 each"
            )
        if not self.rules.max_suite_s > 0.0:
            raise ConfigError(f"max-suite-s {self.rules.max_suite_s}: expected seconds above 0")
        if not 0.0 <= self.held_out < 1.0:
            raise ConfigError(f"held-out {self.held_out}: expected a share from 0 to below 1")
        names = [canonical(package.partition("==")[0]) for package in self.packages]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"packages: {', '.join(twice)} is named twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The number of tasks made of each kind, and of those refused."""

    file: Path
    """The rows."""
    per_library: Mapping[str, int]
    """How many tasks each library gave; those that gave none are missing."""
    refused: Mapping[str, str]
    """Libraries that cannot be used, and why."""
    written: Mapping[str, int] = field(default_factory=dict[str, int])
    """Natural texts by who wrote them: `template`, `model`, and why texts of the model were not
    taken."""

    @property
    def total(self) -> int:
        """The number of tasks in all."""
        return sum(self.per_library.values())


def environment_for(request: MakeRequest) -> Environment:
    """The test environment of a data set folder, made if it is not there.

    Call it first: backends receive the folder when they are opened.

    Raises:
        DataError, ConfigError: see `make_environment`.
    """
    request.check()
    with only_one(request.out):
        index = Index(request.index, request.out / _WORK / "downloads")
        return make_environment(
            request.out / ENVIRONMENT_FOLDER,
            request.test_packages,
            declared=lambda: declared_packages(index, request.packages),
        )


async def make_tasks(
    request: MakeRequest, environment: Environment, backend: SandboxBackend, progress: MakeProgress
) -> Made:
    """Make tasks until there are enough, or no library gives more.

    Args:
        request: what.
        environment: of `environment_for`.
        backend: for the sandboxes; closed by the caller.
        progress: called with what happens.

    Raises:
        ConfigError: the folder is held by another process, or was made with other settings.
        DataError: no disk, or damaged files.
        SandboxError: the sandboxes failed in the same way for several libraries in a row.
    """
    request.check()
    with only_one(request.out):
        check_settings(request.out, request.settings())
        work = request.out / _WORK
        runner = SuiteRunner(backend=backend, limits=LIMITS, environment=environment.folder)
        shop = Workshop(
            index=Index(request.index, work / "downloads"),
            runner=runner,
            environment=environment,
            notes=work / "findings",
            rules=request.rules,
        )
        return await _Rounds(request, shop, progress).run()


class _Rounds:
    """Shares the count among the libraries; what one cannot give, the others are asked for."""

    def __init__(self, request: MakeRequest, shop: Workshop, progress: MakeProgress) -> None:
        self._request = request
        self._shop = shop
        self._progress = progress
        self._store = TreeStore(request.out / STORE_FOLDER)
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._refused: dict[str, str] = {}
        self._before = made_so_far(request.out)
        """Rows of earlier runs, by library; each stays until this one has others, or ends."""
        self._asked = dict.fromkeys(request.packages, 0)
        self._telling = Telling(style=request.style, seed=request.seed, writer=_writer(request))
        self._said = ""
        self._failures = 0
        self._written_s = 0.0

    async def run(self) -> Made:
        asked = self._asked
        giving = list(self._request.packages)
        while giving and self._missing() > 0:
            # Libraries that gave all they were asked for are asked for more.
            for number, package in enumerate(giving):
                share = -(-self._missing() // (len(giving) - number))
                if share <= 0:
                    break
                asked[package] += share
                await self._ask(package, asked[package])
            giving = [
                name
                for name in giving
                if name not in self._refused and len(self._rows.get(name, ())) >= asked[name]
            ]
        self._before = {}
        file = self._write()
        counts = {name: len(rows) for name, rows in self._rows.items() if rows}
        return Made(
            file=file, per_library=counts, refused=self._refused, written=self._telling.written
        )

    def _missing(self) -> int:
        return self._request.count - sum(map(len, self._rows.values()))

    async def _ask(self, package: str, count: int) -> None:
        request = self._request
        failure: SandboxError | None = None
        try:
            if request.kinds == ("releases",):
                self._rows[package] = await release_rows(
                    self._shop,
                    self._store,
                    package,
                    count=count,
                    most_pairs=request.most_pairs,
                    progress=self._progress,
                    telling=self._telling,
                    keep=lambda rows: self._keep(package, rows),
                )
            else:
                self._rows[package] = await procedural_rows(
                    self._shop,
                    self._store,
                    package,
                    kinds=request.kinds,
                    count=count,
                    seed=request.seed,
                    per_function=request.per_function,
                    jobs=request.jobs,
                    progress=self._progress,
                    telling=self._telling,
                    keep=lambda rows: self._keep(package, rows),
                )
        except DataError as error:
            self._leave_out(package, str(error), passing=isinstance(error, NoAnswer))
        except SandboxError as error:
            failure = error
            self._leave_out(package, f"{package}: the sandboxes failed: {error}", passing=True)
        self._write()
        # Numbers differ from one failure to the next: processes, seconds, containers.
        said = re.sub(r"\b[0-9a-f]{8,}\b|\d+", "#", repr(failure) if failure else "")
        self._failures = self._failures + 1 if said and said == self._said else int(bool(said))
        self._said = said
        if failure is not None and self._failures == _SAME_ERRORS:
            raise failure

    def _keep(self, package: str, rows: list[dict[str, Any]]) -> None:
        """Write what there is, now and then: a run that is killed leaves its tasks."""
        now = time.monotonic()
        if now - self._written_s >= _WRITE_S and len(rows) >= len(self._earlier(package)):
            self._rows[package] = rows[: self._asked[package]]
            self._write()

    def _leave_out(self, package: str, why: str, *, passing: bool) -> None:
        """Go on without a library; what a trouble that may pass keeps from being made again, stays.

        Its rows are the first ones of the same settings, so a later run makes the same.
        """
        self._refused[package] = why
        self._progress.refused(package, why)
        kept = self._earlier(package) if passing else []
        if len(kept) > len(self._rows.get(package, ())):
            self._rows[package] = kept[: self._asked[package]]

    def _earlier(self, package: str) -> list[dict[str, Any]]:
        return self._before.get(canonical(package.partition("==")[0]), [])

    def _write(self) -> Path:
        lines: list[str] = []
        rows = {name: self._earlier(name) for name in self._request.packages} | self._rows
        held = _held_out(rows, self._request)
        for package in sorted(rows):
            for row in rows[package]:
                row = row | {"split": "test" if package in held else "train"}
                task = SweTask.from_row(row, f"{package}, a new task")
                lines.append(json.dumps(task.to_row()) + "\n")
        if lines:
            # Before the tasks: a folder with tasks and no settings would take any.
            write_settings(self._request.out, self._request.settings())
        file = self._request.out / TASKS_FILE
        replace_file(file, "".join(lines).encode())
        self._written_s = time.monotonic()
        return file


def _writer(request: MakeRequest) -> ServedWriter | None:
    if not request.writer_url:
        return None
    settings = ServedSettings(
        url=request.writer_url,
        model=request.writer_model,
        api_key_env=request.writer_key_env,
        temperature=0.7,
        seed=request.seed,
        tries=3,
        max_tokens=0,
    )
    return ServedWriter(ServedModel(settings, where="--writer-*"), request.writer_model)


def _held_out(rows: Mapping[str, Sequence[Any]], request: MakeRequest) -> set[str]:
    """Libraries of split `test`: those whose hash is smallest, so more libraries move few."""
    giving = [package for package in rows if rows[package]]

    def rank(package: str) -> str:
        name = canonical(package.partition("==")[0])
        return hashlib.sha256(f"{request.seed}:{name}".encode()).hexdigest()

    count = round(request.held_out * len(giving))
    if request.held_out > 0 and len(giving) > 1:
        count = max(count, 1)
    return set(sorted(giving, key=rank)[:count])
