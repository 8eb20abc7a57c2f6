"""Images: what a build refuses, when it does nothing, and what it leaves behind when it fails."""

from __future__ import annotations

import fcntl
import io
import json
import os
import secrets
import tarfile
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from agentrl_sandboxes.image import Recipe, build, find, listing
from agentrl_sandboxes.image.bootstrap import PREFIX, directory, lock_path
from agentrl_sandboxes.image.daemon import daemon
from agentrl_sandboxes.leftovers import collect

from agentrl.cli import main
from agentrl.errors import ConfigError, SandboxError


def test_hash_is_of_the_contents_only() -> None:
    # Fails if the name or the order makes an image again, or if a package more does not.
    plain = Recipe(packages=("ripgrep", "jq"))
    assert plain.digest == Recipe(name="other:2", packages=("jq", "ripgrep", "git")).digest
    others = [Recipe(), Recipe(packages=("jq",)), Recipe(python_packages=("jq",))]
    assert len({plain.digest, *(recipe.digest for recipe in others)}) == 4
    assert Recipe(suite="trixie").digest != Recipe().digest


@pytest.mark.parametrize(
    ("name", "repository", "tag"),
    [
        ("sandbox", "sandbox", "latest"),
        ("registry.org/team/sandbox:1.2", "registry.org/team/sandbox", "1.2"),
        ("localhost/sandbox", "localhost/sandbox", "latest"),
    ],
)
def test_name_and_tag(name: str, repository: str, tag: str) -> None:
    recipe = Recipe(name=name)
    assert (recipe.repository, recipe.tag) == (repository, tag)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "Upper"},
        {"name": "a b"},
        {"packages": ("git; reboot",)},
        {"packages": ("--download-only",)},
        {"python_packages": ("--index-url=http://elsewhere",)},
        {"python_packages": ("numpy>=2 --pre",)},
        {"suite": "../x"},
    ],
)
def test_words_that_are_options_or_commands_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"got .*expected"):
        Recipe(**wrong)  # pyright: ignore[reportArgumentType]


def test_no_daemon_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    for command in ("list", "build"):
        with pytest.raises(SystemExit) as caught:
            main(["sandbox", "image", command])
        assert caught.value.code == 2
        said = capsys.readouterr().err
        assert "unix:///nowhere/docker.sock (DOCKER_HOST)" in said
        assert "dockerd" in said


async def test_unknown_way_lists_the_ways() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'dockerfile'.*auto, debootstrap"):
        await build(Recipe(), way="dockerfil")


def test_directory_of_a_killed_build_is_deleted_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"{PREFIX}dead" / "tree").mkdir(parents=True)
    (tmp_path / "precious").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "precious")
    with directory() as place:
        assert {path.name for path in tmp_path.iterdir()} == {
            *("precious", f"{PREFIX}link", place.name)
        }
    assert not place.exists()


@pytest.fixture
async def name() -> AsyncIterator[str]:
    """A name that no image has; whatever gets it is deleted afterwards."""
    chosen = f"agentrl-test-{secrets.token_hex(4)}"
    yield chosen
    async with daemon() as link:
        await link.delete(f"images/{chosen}")


async def _make_tiny(name: str, labels: Sequence[tuple[str, str]] = ()) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("empty"))
    query = [("fromSrc", "-"), ("repo", name), ("tag", "latest")]
    query += [("changes", f"LABEL {key}={json.dumps(value)}") for key, value in labels]
    async with daemon() as link:
        await link.post("images/create", query, buffer.getvalue(), lambda line: None)


@pytest.mark.docker
async def test_second_build_does_nothing(name: str) -> None:
    # Fails if a build does not look for its hash first: debootstrap would run for a minute.
    recipe = Recipe(name=name)
    await _make_tiny(name, list(recipe.labels.items()))
    built = await build(recipe)
    assert (built.way, built.image.digest) == ("", recipe.digest)
    assert name in [image.name.partition(":")[0] for image in await listing()]


@pytest.mark.docker
async def test_image_made_elsewhere_is_not_replaced(name: str) -> None:
    await _make_tiny(name)
    before = await find(name)
    with pytest.raises(ConfigError, match=r"not made by this command.*--force"):
        await build(Recipe(name=name))
    assert await find(name) == before
    assert name not in str(await listing())


@pytest.mark.docker
@pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap needs root")
async def test_failed_build_says_why_and_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fails if the directory is kept, or if debootstrap's own words are lost.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tmp_path.chmod(0o755)
    with pytest.raises(SandboxError, match=r"debootstrap ended with status 1: E: .*Release"):
        await build(Recipe(name=name), way="debootstrap", mirror="http://127.0.0.1:9/debian")
    assert not list(tmp_path.glob(f"{PREFIX}*"))
    assert await find(name) is None


@pytest.mark.docker
async def test_dockerfile_without_a_registry_names_the_other_way(name: str) -> None:
    base = "registry.invalid/nobody/nothing:1"
    with pytest.raises(SandboxError, match=r"registry.invalid.*--from debootstrap"):
        await build(Recipe(name=name), way="dockerfile", base=base)
    assert await find(name) is None


async def test_gc_finds_the_directory_of_a_killed_build(tmp_path: Path) -> None:
    # Fails if gc says that nothing is left behind; and if it takes that of a build at work.
    dead = tmp_path / f"{PREFIX}dead"
    (dead / "tree").mkdir(parents=True)
    lock = os.open(lock_path(tmp_path, os.geteuid()), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert str(dead) not in {item.name for item in await collect(folder=tmp_path)}
    os.close(lock)
    assert str(dead) in {item.name for item in await collect(folder=tmp_path, dry_run=True)}
    assert dead.exists()
    assert str(dead) in {item.name for item in await collect(folder=tmp_path) if item.removed}
    assert not dead.exists()
