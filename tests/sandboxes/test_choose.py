"""Which backend a config gets, and what it is told when it gets none or a weak one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from agentrl_sandboxes import (
    BACKENDS,
    BubblewrapBackend,
    ProcessBackend,
    UsernsBackend,
    make_backend,
)

from agentrl.errors import ConfigError, SandboxUnavailable
from agentrl.sandbox import Isolation, SandboxLimits


class NoBubblewrap(BubblewrapBackend):
    """A machine without the package."""

    program = "bwrap-that-is-not-installed"


class NoUserns(UsernsBackend):
    """A machine where making namespaces fails."""

    program = "false"


class Second(ProcessBackend):
    """Works everywhere, and stands for the second choice."""

    name = "userns"
    isolation = Isolation.NAMESPACES


async def test_auto_takes_the_first_that_works(caplog: pytest.LogCaptureFixture) -> None:
    kinds = {"bubblewrap": NoBubblewrap, "userns": Second, "process": ProcessBackend}
    with caplog.at_level(logging.INFO):
        backend = await make_backend("auto", kinds)
    assert backend.name == "userns"
    assert "sandbox backend: userns" in caplog.text
    await backend.close()


async def test_auto_falls_back_to_the_weak_one_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Fails if a weak sandbox is taken in silence.
    kinds = {"bubblewrap": NoBubblewrap, "userns": NoUserns, "process": ProcessBackend}
    with caplog.at_level(logging.INFO):
        backend = await make_backend("auto", kinds)
        again = await make_backend("auto", kinds)
    assert backend.name == again.name == "process"
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert sum("WEAK" in text for text in warnings) <= 1
    assert any("no stronger sandbox works here" in text for text in warnings)
    assert any("Install the package 'bubblewrap'" in text for text in warnings)
    await backend.close()
    await again.close()


async def test_a_named_backend_that_does_not_work_is_an_error() -> None:
    with pytest.raises(SandboxUnavailable) as caught:
        await make_backend("bubblewrap", {"bubblewrap": NoBubblewrap})
    assert "'bwrap-that-is-not-installed' is not on PATH" in str(caught.value)
    assert "Install the package" in str(caught.value)
    with pytest.raises(SandboxUnavailable, match="ended before it was ready"):
        await make_backend("userns", {"userns": NoUserns})


async def test_auto_with_nothing_that_works_names_everything() -> None:
    kinds = {"bubblewrap": NoBubblewrap, "userns": NoUserns}
    with pytest.raises(SandboxUnavailable, match=r"bubblewrap does not work.*userns does not work"):
        await make_backend("auto", kinds)


async def test_unknown_name_lists_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'bubblewrap'.*process, userns"):
        await make_backend("bublewrap")


async def test_options_reach_the_backend_or_are_refused(tmp_path: Path) -> None:
    # Fails if a setting of the user is dropped in silence.
    for path, complaint in (
        ("relative", "not an absolute path"),
        (str(tmp_path / "nothing"), "not a directory"),
        ("/proc/self", r"cannot be shown"),
    ):
        for name in ("bubblewrap", "docker"):
            with pytest.raises(ConfigError, match=complaint):
                await make_backend(name, read_only=[path])
    with pytest.raises(ConfigError, match=r"runtime is 'runsc', and sandbox.backend is 'auto'"):
        await make_backend("auto", runtime="runsc")
    backend = await make_backend("auto", read_only=[str(Path(__file__).parent)], image="any")
    sandbox = await backend.create(SandboxLimits())
    result = await sandbox.exec(("ls", str(Path(__file__).parent)))
    await backend.close()
    assert Path(__file__).name in result.stdout


async def test_docker_is_taken_by_name_only() -> None:
    kinds = {"docker": Second, "process": ProcessBackend}
    backend = await make_backend("auto", kinds)
    assert backend.name == "process"
    await backend.close()


def test_order_is_from_strong_to_weak() -> None:
    strengths = [kind.isolation for kind in BACKENDS.values()]
    assert strengths == sorted(strengths, reverse=True)
