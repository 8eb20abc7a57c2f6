"""`agentrl sandbox`: see which sandboxes work here, prove one, remove what crashes have left."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentrl.cli.console.findings import MeasuredColumns, findings_table
from agentrl.errors import ConfigError
from agentrl.plugins.imports import resolve
from agentrl.sandbox import Probe, SandboxBackend
from agentrl.testing.sandbox_check.suite import SuiteFinding, checks, run_suite
from agentrl.types.finding import Status, any_failed

app = typer.Typer(help="See which sandboxes work on this machine.", no_args_is_help=True)
images = typer.Typer(help="Make and list images for Docker sandboxes.", no_args_is_help=True)
app.add_typer(images, name="image", help="Make and list images for Docker sandboxes.")

FACTORY = "agentrl_sandboxes:make_backend"
KINDS = "agentrl_sandboxes:BACKENDS"
COLLECT = "agentrl_sandboxes.leftovers:collect"
IMAGES = "agentrl_sandboxes.image"
IMAGE_NAME = "agentrl-sandbox"
_WORDS = {Status.OK: "passed", Status.FAIL: "failed", Status.UNKNOWN: "not offered"}
_COLUMNS = MeasuredColumns(
    headings=("check", "verdict", "seconds", "what was seen"),
    number=lambda finding: f"{finding.seconds:.2f}",
)


@app.command("list")
def list_backends() -> None:
    """Try every backend, list which work; `auto` takes the first of this machine's own kernel."""
    table = Table("backend", "works", "isolation", "what was found", title="Sandboxes")
    for name, probe in asyncio.run(_probe_all()).items():
        works = "[green]yes[/]" if probe.available else "[red]no[/]"
        table.add_row(name, works, probe.isolation.name.lower(), escape(probe.detail))
    Console().print(table)


@app.command()
def check(
    target: str = typer.Argument(
        "auto",
        help="auto, docker, bubblewrap, userns, process, kubernetes, or an import string of a "
        "backend.",
    ),
    image: str = typer.Option("", help="Container image, for docker and kubernetes."),
    runtime: str = typer.Option(
        "", help="Container runtime, as runsc, for docker; RuntimeClass for kubernetes."
    ),
    only: Annotated[list[str] | None, typer.Option(help="Run this check; may be repeated.")] = None,
    at_once: int = typer.Option(3, min=1, help="How many checks run side by side."),
) -> None:
    """Run the conformance suite on a backend; exit status 1 if a check fails."""
    console = Console()
    options = {"image": image, "runtime": runtime}
    made = {name: value for name, value in options.items() if value}
    name, results = asyncio.run(_check(target, made, only or [], at_once, console))
    shown = [replace(r, detail=f"{r.check.about} {r.detail}") if r.detail else r for r in results]
    title = f"Sandbox {name}"
    console.print(findings_table(shown, words=_WORDS, columns=_COLUMNS, title=title))
    counts = {word: sum(r.status is status for r in results) for status, word in _WORDS.items()}
    console.print(", ".join(f"{count} {word}" for word, count in counts.items()))
    if any_failed(results):
        raise typer.Exit(1)


@app.command()
def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed; remove nothing.")
    ] = False,
) -> None:
    """Remove containers, pods, folders and cgroups whose owner has died, and old volumes."""
    console = Console(highlight=False, soft_wrap=True)
    found: list[Any] = asyncio.run(resolve(COLLECT)(dry_run=dry_run))
    left = [item for item in found if item.name]
    for item in left:
        done = "removed" if item.removed else "would remove" if dry_run else "could not remove"
        console.print(f"{done} {item.kind} {item.name}: {item.about}", markup=False)
    for item in found:
        if not item.name:
            console.print(f"no {item.kind}s were looked for: {item.about}", markup=False)
    if not left:
        console.print("nothing is left behind" if not found else "elsewhere nothing is left behind")
    if not dry_run and not all(item.removed for item in left):
        raise typer.Exit(1)


async def _check(
    target: str, made: dict[str, str], only: list[str], at_once: int, console: Console
) -> tuple[str, list[SuiteFinding]]:
    backend = await _backend(target, made)
    total = len(only or checks())
    try:
        with console.status("") as status:
            done: list[SuiteFinding] = []

            def show(result: SuiteFinding) -> None:
                done.append(result)
                status.update(f"{backend.name}: {len(done)} of {total}, {result.name}")

            return backend.name, await run_suite(
                backend, names=only, at_once=at_once, on_result=show
            )
    finally:
        await backend.close()


async def _backend(target: str, made: dict[str, str]) -> SandboxBackend:
    """A backend by name through the factory, or by import string: an object, class or function.

    Args:
        target: which.
        made: options of the command line for making it, those that were given.
    """
    able = [name for name, kind in resolve(KINDS).items() if "image" in kind.options]
    if "image" in made and target not in able and ":" not in target:
        raise ConfigError(
            f"sandbox check {target!r}: only {' and '.join(able)} have images, got --image"
        )
    value: Any = resolve(target if ":" in target else FACTORY)
    if callable(value):
        try:
            value = value(**made) if ":" in target else value(target, **made)
        except TypeError as error:
            raise ConfigError(f"sandbox check {target!r}: cannot be called: {error}") from error
    if inspect.isawaitable(value):
        value = await value
    if not isinstance(value, SandboxBackend):
        raise ConfigError(
            f"sandbox check {target!r}: expected a SandboxBackend, or a class or function that "
            f"gives one, got {type(value).__name__}"
        )
    return value


async def _probe_all() -> dict[str, Probe]:
    found: dict[str, Probe] = {}
    for name, kind in resolve(KINDS).items():
        backend = kind()
        found[name] = await backend.glance()
        await backend.close()
    return found


@images.command()
def build(
    name: Annotated[str, typer.Option(help="Reference of the image, with or without a tag.")] = (
        IMAGE_NAME
    ),
    packages: Annotated[
        list[str] | None, typer.Option(help="One more Debian package; may be repeated.")
    ] = None,
    python_packages: Annotated[
        list[str] | None, typer.Option(help="One more Python requirement; may be repeated.")
    ] = None,
    suite: Annotated[str, typer.Option(help="Release of Debian.")] = "bookworm",
    way: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="auto|debootstrap|dockerfile",
            help="debootstrap needs root and a Debian mirror, a Dockerfile needs a registry; auto "
            "takes debootstrap where it can.",
        ),
    ] = "auto",
    mirror: Annotated[str, typer.Option(help="Debian mirror for debootstrap.")] = "",
    base: Annotated[str, typer.Option(help="Image that the Dockerfile starts from.")] = "",
    force: Annotated[
        bool,
        typer.Option("--force", help="Make it again; take the name from an image made elsewhere."),
    ] = False,
) -> None:
    """Make an image with Python, pytest and git; does nothing where the daemon has it already."""
    console = Console(highlight=False, soft_wrap=True)
    recipe = resolve(f"{IMAGES}:Recipe")(
        name=name,
        packages=tuple(packages or ()),
        python_packages=tuple(python_packages or ()),
        suite=suite,
    )
    with console.status(f"image {name}") as status:
        built: Any = asyncio.run(
            resolve(f"{IMAGES}:build")(
                recipe,
                way=way,
                force=force,
                mirror=mirror,
                base=base,
                on_line=lambda line: status.update(escape(line[:100])),
            )
        )
    size = f"{built.image.size_bytes / 1e6:.0f} MB"
    if built.way:
        console.print(f"made {name} with {built.way}: {size}, {built.image.packages}", markup=False)
    else:
        console.print(f"{name} is up to date: {size}, {built.image.packages}", markup=False)


@images.command("list")
def list_images() -> None:
    """The images that were made here."""
    console = Console()
    found: list[Any] = asyncio.run(resolve(f"{IMAGES}:listing")())
    if not found:
        console.print("no image was made here yet; `agentrl sandbox image build` makes one")
        return
    table = Table("image", "made", "size", "packages", title="Images for sandboxes")
    for image in found:
        made = image.created
        if made.isdecimal():
            made = datetime.fromtimestamp(int(made), UTC).strftime("%Y-%m-%d %H:%M UTC")
        table.add_row(
            escape(image.name), made, f"{image.size_bytes / 1e6:.0f} MB", escape(image.packages)
        )
    console.print(table)
