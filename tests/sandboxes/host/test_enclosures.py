"""Directories of the host that programs may read: at their own paths, also where a sandbox has
files of its own, and not where it would lose them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentrl_sandboxes import BACKENDS
from agentrl_sandboxes.host.enclosures import BubblewrapBackend, NamespaceBackend

from agentrl.errors import ConfigError
from agentrl.sandbox import SandboxLimits


@pytest.fixture
def shown() -> Iterator[list[Path]]:
    """Directories below the places that are links inside, two deep and one deep."""
    with (
        tempfile.TemporaryDirectory(dir="/tmp", prefix="agentrl-shown-") as one,
        tempfile.TemporaryDirectory(dir="/dev/shm", prefix="agentrl-shown-") as two,
    ):
        places = [Path(one, "a", "b"), Path(two)]
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
            for path in (place, *place.parents[:2]):
                if path.name.startswith(("agentrl-shown-", "a", "b")):
                    path.chmod(0o755)
            (place / "f").write_text("host")
        yield places


WITH_OUR_LAYOUT = [name for name, kind in BACKENDS.items() if issubclass(kind, NamespaceBackend)]


@pytest.mark.parametrize("backend_name", WITH_OUR_LAYOUT, indirect=True)
async def test_directories_below_tmp_are_shown_and_survive(
    backend_name: str, shown: list[Path]
) -> None:
    # Fails if the link /tmp is made after the mount point, if a reset takes what is mounted for
    # something a program has left, or if the way there makes /tmp the host's.
    kind = BACKENDS[backend_name]
    assert issubclass(kind, NamespaceBackend)
    backend = kind(read_only=shown)
    script = "".join(
        f"cat {place}/f; rm -rf {place} 2>/dev/null; touch {place}/g 2>/dev/null && echo BAD;"
        for place in shown
    )
    try:
        sandbox = await backend.create(SandboxLimits())
        for _ in range(2):
            result = await sandbox.exec(("sh", "-c", script + "echo x > /tmp/own && echo ok"))
            assert result.stdout == "hosthostok\n", result
            await sandbox.reset()
            assert (await sandbox.exec(("ls", "/tmp/own"))).exit_code == 2
    finally:
        await backend.close()
    assert all((place / "f").read_text() == "host" for place in shown)


@pytest.mark.parametrize("path", ["/", "/tmp", "/var", "/proc/sys", "/dev", "/etc", "/no/such"])
def test_what_every_sandbox_has_cannot_be_covered(path: str) -> None:
    with pytest.raises(ConfigError, match=r"sandbox\.read_only"):
        BubblewrapBackend(read_only=[Path(path)])
