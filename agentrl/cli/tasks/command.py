"""`agentrl tasks`: make data sets of tasks, and check that they still hold."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentrl.cli.tasks import images as tasks_images
from agentrl.cli.tasks import levels as tasks_levels
from agentrl.cli.tasks import profile as tasks_profile
from agentrl.config import resolve
from agentrl.config.sandboxes import sandbox_section
from agentrl.errors import ConfigError
from agentrl.sandbox import SandboxBackend

app = typer.Typer(help="Make data sets of tasks, and check them.", no_args_is_help=True)
make_app = typer.Typer(help="Make tasks.", no_args_is_help=True)
app.add_typer(make_app, name="make")
app.command("profile")(tasks_profile.command)
app.command("images")(tasks_images.command)
app.command("levels")(tasks_levels.command)

_MAKER = "agentrl_envs.swe.make"
_VALIDATE = "agentrl_envs.swe.make.validate:validate_tasks"
_DROP = "agentrl_envs.swe.make.validate:drop"
_HIDDEN = ("/tmp", "/dev", "/proc", "/sandbox")
"""Places of which a sandbox has its own: no folder of this machine can be shown there."""

_TASKS_FILE = "tasks.jsonl"
_CORES = os.cpu_count() or 1


def _folder(text: str) -> Path:
    """A folder as typed; an empty word, as of a variable that is not set, is not the current one.

    Raises:
        ConfigError: it is empty.
    """
    if not text.strip():
        raise ConfigError("the folder is empty text; expected a path, '.' for the current folder")
    return Path(text).expanduser()


_Sandbox = Annotated[
    str, typer.Option(help="auto, a backend's name, or the import string of a backend.")
]
_Jobs = Annotated[int, typer.Option(min=1, help="Sandboxes at once; default: one per core.")]


@make_app.command()
def swe(
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", parser=_folder, metavar="FOLDER", help="Folder of the data set."
        ),
    ],
    package: Annotated[
        list[str] | None,
        typer.Option(
            help="A library on PyPI, NAME or NAME==VERSION; may be repeated. Default: "
            "a list of libraries that are known to work."
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="How many tasks in all.")] = 200,
    kind: Annotated[
        str,
        typer.Option(
            help="procedural: one small bug; several: two or three, each to be mended; removed: a "
            "function, method or branch taken out; these may be joined by commas. releases: what a "
            "release fixed."
        ),
    ] = "procedural",
    style: Annotated[
        str,
        typer.Option(
            help="tests: the text names the failing tests; natural: it is a user's report of what "
            "goes wrong, and the failing tests are hidden."
        ),
    ] = "tests",
    writer_url: Annotated[
        str,
        typer.Option(
            help="Where a model that writes natural texts is served, such as http://host:8000/v1; "
            "default: templates."
        ),
    ] = "",
    writer_model: Annotated[str, typer.Option(help="Its name there.")] = "",
    writer_key_env: Annotated[
        str, typer.Option(help="Environment variable with the key of that server.")
    ] = "",
    seed: Annotated[int, typer.Option(help="The same seed makes the same tasks.")] = 0,
    held_out: Annotated[
        float, typer.Option(help="Share of the libraries whose tasks are in split 'test'.")
    ] = 0.2,
    per_function: Annotated[int, typer.Option(help="Most procedural tasks of a function.")] = 2,
    pairs: Annotated[int, typer.Option(help="Most pairs of releases per library.")] = 8,
    index: Annotated[
        str | None, typer.Option(help="URL of a package index, or a folder of source archives.")
    ] = None,
    test_package: Annotated[
        list[str] | None,
        typer.Option(help="What tests import, beside the default; may be repeated."),
    ] = None,
    max_suite_s: Annotated[
        float, typer.Option(help="Libraries whose tests take longer are left out.")
    ] = 30.0,
    any_license: Annotated[
        bool, typer.Option("--any-license", help="Take licences that are not permissive, too.")
    ] = False,
    sandbox: _Sandbox = "auto",
    jobs: _Jobs = _CORES,
) -> None:
    """Make repair tasks from the source distributions of real libraries.

    Every task is validated by running the library's tests. A killed run goes on where it stopped
    when the same command is given again.
    """
    maker = _maker()
    request = maker.MakeRequest(
        out=out,
        packages=tuple(package or maker.LIBRARIES),
        count=count,
        kind=kind,
        style=style,
        writer_url=writer_url,
        writer_model=writer_model,
        writer_key_env=writer_key_env,
        seed=seed,
        held_out=held_out,
        per_function=per_function,
        most_pairs=pairs,
        index=index or maker.PYPI,
        test_packages=(*maker.DEFAULT_PACKAGES, *(test_package or ())),
        rules=maker.Rules(max_suite_s=max_suite_s, any_license=any_license),
        jobs=jobs,
    )
    console = Console(highlight=False, soft_wrap=True)
    started = time.monotonic()
    with console.status("making the test environment") as status:
        environment = maker.environment_for(request)
        progress = _Drawn(console, status)

        async def work(backend: SandboxBackend) -> Any:
            return await maker.make_tasks(request, environment, backend, progress)

        made = _run(_with_sandboxes(sandbox, environment.folder, work))
    _print_made(console, made, progress, time.monotonic() - started)
    if made.total < count:
        console.print(f"[yellow]{count - made.total} fewer than asked for[/]; name more libraries")
        raise typer.Exit(0 if made.total else 1)


@app.command()
def validate(
    folder: Annotated[
        Path,
        typer.Argument(
            parser=_folder, metavar="FOLDER", help="Folder of 'agentrl tasks make swe'."
        ),
    ],
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only so many tasks, spread over the file.")
    ] = None,
    drop: Annotated[
        bool,
        typer.Option(
            "--drop", help="Leave what does not hold out of the set: tasks, or tests that flip."
        ),
    ] = False,
    sandbox: _Sandbox = "auto",
    jobs: _Jobs = _CORES,
) -> None:
    """Run every task's tests again, without its gold change and with it.

    A task that disagrees is run twice more: a test that then does what its task says flips, which
    is no disagreement. Exit status 1 if there is either and it was not dropped.
    """
    console = Console(highlight=False, soft_wrap=True)
    if not (folder / _TASKS_FILE).is_file():
        what = f"holds no {_TASKS_FILE}" if folder.is_dir() else "is no folder"
        raise ConfigError(f"{folder} {what}; expected one that 'agentrl tasks make swe' wrote")
    run = resolve(_VALIDATE)
    read_environment = resolve(f"{_MAKER}.environment:read_environment")
    environment = read_environment(folder / "environment")
    wrong: list[Any] = []
    started = time.monotonic()
    with console.status("") as status:

        async def work(backend: SandboxBackend) -> int:
            done = 0
            async for finding in run(folder, environment, backend, jobs=jobs, limit=limit):
                done += 1
                status.update(f"{done} of {finding.of}: {finding.instance_id}")
                flips = [f"flips: {test}" for test in finding.flips]
                for text in (*finding.disagreements, *flips):
                    console.print(f"{finding.instance_id}: {text}", style="red", markup=False)
                if finding.disagreements or flips:
                    wrong.append(finding)
            return done

        count = _run(_with_sandboxes(sandbox, environment.folder, work))
    took = time.monotonic() - started
    found = _number(sum(len(f.disagreements) for f in wrong), "disagreement", "disagreements")
    flips = _number(len({test for f in wrong for test in f.flips}), "test flips", "tests flip")
    console.print(f"{_number(count, 'task', 'tasks')} in {took:.0f} s, {found}, {flips}")
    if wrong and not drop:
        console.print("leave them out with --drop")
        raise typer.Exit(1)
    if wrong:
        gone, shorter = resolve(_DROP)(folder, wrong)
        console.print(
            f"{_number(gone, 'task', 'tasks')} left out, {shorter} without their tests that flip"
        )


def _maker() -> Any:
    """The module that makes repair tasks; the core does not import environments."""
    from agentrl.plugins.imports import load_module

    return load_module(_MAKER)


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def _with_sandboxes(name: str, shown: Path, work: Any) -> Any:
    # Imported here: help and mistakes in options need none of it.
    from agentrl.runtime.assembly.parts import open_sandboxes

    hidden = any(shown.is_relative_to(path) for path in _HIDDEN)
    # What cannot be shown is copied into each sandbox instead.
    section = sandbox_section(name)
    shows = not hidden and "read_only" in type(section).model_fields
    section = sandbox_section(name, read_only=(str(shown),)) if shows else section
    try:
        backend = await open_sandboxes(section, base=Path.cwd())
    except ConfigError:
        if not shows:
            raise
        # A backend of the user's own need not be able to show folders.
        section = sandbox_section(name)
        backend = await open_sandboxes(section, base=Path.cwd())
    try:
        return await work(backend)
    finally:
        await backend.close()


class _Drawn:
    """Shows what happens in one line, and remembers it for the table."""

    def __init__(self, console: Console, status: Any) -> None:
        self._console = console
        self._status = status
        self.libraries: dict[str, tuple[str, str, int, float]] = {}
        """Version, licence, tests and seconds of a run, by library."""
        self.reasons: dict[str, Counter[str]] = {}
        """Outcomes of the changes, counted by library."""

    def phase(self, release: Any, what: str) -> None:
        self._status.update(escape(f"{release.name} {release.version}: {what}"))

    def baseline(self, release: Any, license: str, baseline: Any) -> None:
        self.libraries[release.name] = (
            release.version,
            license,
            len(baseline.passed),
            baseline.seconds,
        )

    def tried(self, release: Any, reason: str, made: int, wanted: int) -> None:
        self.reasons.setdefault(release.name, Counter())[reason or "task"] += 1
        self._status.update(escape(f"{release.name}: {made} of {wanted} tasks"))

    def refused(self, library: str, why: str) -> None:
        self._console.print(f"left out: {why}", style="yellow", markup=False)


def _print_made(console: Console, made: Any, progress: _Drawn, took: float) -> None:
    columns = ("library", "version", "licence", "tests", "seconds a run", "tried", "tasks")
    table = Table(*columns, title="Repair tasks")
    for package, count in sorted(made.per_library.items()):
        name = resolve(f"{_MAKER}.library:canonical")(package.partition("==")[0])
        version, license, tests, seconds = progress.libraries.get(name, ("", "", 0, 0.0))
        tried = sum(progress.reasons.get(name, Counter()).values())
        cells: Sequence[str] = (
            name,
            version,
            license,
            str(tests),
            f"{seconds:.1f}",
            str(tried),
            str(count),
        )
        table.add_row(*map(escape, cells))
    console.print(table)
    rate = made.total / max(took, 1e-9) * 60
    console.print(
        f"{_number(made.total, 'task', 'tasks')} from "
        f"{_number(len(made.per_library), 'library', 'libraries')} in {took:.0f} s "
        f"({rate:.1f} a minute): {made.file}",
        markup=False,
    )
    reasons: Counter[str] = sum(progress.reasons.values(), Counter())
    del reasons["task"]
    for what, counts in (("tried and not taken", reasons), ("texts", made.written)):
        if counts:
            words = ", ".join(f"{count} {name}" for name, count in Counter(counts).most_common())
            console.print(f"{what}: {words}", markup=False)


def _number(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"
