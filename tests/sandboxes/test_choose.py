"""The choice of a backend, and the message when there is none or only a weak one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from agentrl_sandboxes import (
    BACKENDS,
    BubblewrapBackend,
    DockerBackend,
    ProcessBackend,
    UsernsBackend,
    make_backend,
)

from agentrl.config.sandboxes import sandbox_section
from agentrl.errors import ConfigError, SandboxUnavailable
from agentrl.plugins.imports import resolve
from agentrl.runtime.assembly.parts import open_sandboxes
from agentrl.sandbox import Isolation, SandboxLimits
from agentrl.testing.sandbox_check.suite import run_suite
from agentrl.types.finding import Status


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


class ByName(Second):
    """Works, and costs too much to be taken unasked."""

    automatic = False


async def test_some_are_taken_by_name_only() -> None:
    kinds = {"userns": ByName, "process": ProcessBackend}
    for name, taken in (("auto", "process"), ("userns", "userns")):
        backend = await make_backend(name, kinds)
        assert backend.name == taken
        await backend.close()
    assert not DockerBackend.automatic


TOY = """
from agentrl_sandboxes import ProcessBackend

class ToyBackend(ProcessBackend):
    name = "toy"
    options = ("image",)

    def __init__(self, image="toys"):
        super().__init__()
        self.image = image
"""


async def test_new_backend_is_a_file_and_a_line_of_the_registry(tmp_path: Path) -> None:
    # Fails if a part of the choice, or a message, knows the backends by their names.
    (tmp_path / "toy.py").write_text(TOY)
    kinds = {**BACKENDS, "toy": resolve("toy.py:ToyBackend", base=tmp_path)}
    with pytest.raises(ConfigError, match=r"did you mean 'toy'.*docker, kubernetes, process, toy"):
        await make_backend("toyy", kinds)
    with pytest.raises(ConfigError, match=r"set sandbox\.backend: docker or kubernetes, or leave"):
        await make_backend("toy", kinds, runtime="runsc")
    for image, taken in (("", "toys"), ("own", "own")):
        backend = await make_backend("toy", kinds, image=image)
        assert vars(backend)["image"] == taken
        (result,) = await run_suite(backend, names=["output_is_captured"])
        await backend.close()
        assert result.status is Status.OK, result.detail


async def test_backend_of_ones_own_is_named_by_an_import_string(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(TOY)
    section = sandbox_section("toy.py:ToyBackend", image="own")
    backend = await open_sandboxes(section, base=tmp_path)
    (result,) = await run_suite(backend, names=["output_is_captured"])
    await backend.close()
    assert (backend.name, result.status) == ("toy", Status.OK)
    with pytest.raises(ConfigError, match=r"has no 'ToyBackends': .*did you mean 'ToyBackend'"):
        await open_sandboxes(sandbox_section("toy.py:ToyBackends"), base=tmp_path)


async def test_a_runtime_is_for_containers() -> None:
    with pytest.raises(ConfigError, match="only containers have a runtime"):
        await make_backend("userns", runtime="runsc")


def test_order_is_from_strong_to_weak() -> None:
    strengths = [kind.isolation for kind in BACKENDS.values()]
    assert strengths == sorted(strengths, reverse=True)
