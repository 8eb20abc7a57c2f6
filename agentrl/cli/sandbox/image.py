"""`agentrl sandbox image`: make the images that Docker sandboxes start from, and see them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentrl.plugins.imports import resolve

app = typer.Typer(help="Make and list images for Docker sandboxes.", no_args_is_help=True)

PACKAGE = "agentrl_sandboxes.image"
NAME = "agentrl-sandbox"


@app.command()
def build(
    name: Annotated[str, typer.Option(help="Reference of the image, with or without a tag.")] = (
        NAME
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
    recipe = resolve(f"{PACKAGE}:Recipe")(
        name=name,
        packages=tuple(packages or ()),
        python_packages=tuple(python_packages or ()),
        suite=suite,
    )
    with console.status(f"image {name}") as status:
        built: Any = asyncio.run(
            resolve(f"{PACKAGE}:build")(
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


@app.command("list")
def list_images() -> None:
    """The images that were made here."""
    console = Console()
    images: list[Any] = asyncio.run(resolve(f"{PACKAGE}:listing")())
    if not images:
        console.print("no image was made here yet; `agentrl sandbox image build` makes one")
        return
    table = Table("image", "made", "size", "packages", title="Images for sandboxes")
    for image in images:
        made = image.created
        if made.isdecimal():
            made = datetime.fromtimestamp(int(made), UTC).strftime("%Y-%m-%d %H:%M UTC")
        table.add_row(
            escape(image.name), made, f"{image.size_bytes / 1e6:.0f} MB", escape(image.packages)
        )
    console.print(table)
