"""Which tests run alone, one after the other, and which need a Docker daemon.

Servers and clusters compute on all cores while they start, and what they are asked meanwhile takes
its time. So whatever starts one is marked `fleet` or `ray`, and `make test` (`.ci/tests.py`) runs
it after everything else.
A test marked `docker` is skipped, with the reason, where no daemon answers or it has no image for
sandboxes and none can be made. One marked `gpu` is skipped without CUDA, and `make test` leaves it
out and says so. In CI every part is there, so whatever is skipped there has failed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Generator
from functools import cache

import hypothesis
import pytest

pytest_plugins = ["tests.serving.shared_server"]

# The time of an example is that of a machine that does other things too.
hypothesis.settings.register_profile("agentrl", deadline=None)
hypothesis.settings.load_profile("agentrl")
# A shell script that starts the tests in the background has SIGINT ignored, and what tests start
# would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "vllm_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.fleet)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        import torch  # takes a second, which most calls of pytest need not wait

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device, and torch sees none here")
    if item.get_closest_marker("docker") is None:
        return
    reason = docker_trouble()
    if reason:
        pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.get_closest_marker("gpu") is None and not hasattr(report, "wasxfail"):
        fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    fail_if_skipped(report)
    return report


def fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Nobody reads a skip in CI."""
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"in CI every part has to be there, but: {report.longrepr}"


@cache
def docker_trouble() -> str:
    """Empty if sandboxes can be started from the default image, which is made if it is missing."""
    from agentrl_sandboxes.image import Recipe, build, find

    from agentrl.errors import AgentrlError

    async def ensure() -> None:
        # Any image of that name serves.
        if await find(Recipe().name) is None:
            await build(Recipe())

    try:
        asyncio.run(ensure())
    except AgentrlError as error:
        return str(error)
    return ""
