"""A sandbox without walls leaves nothing in places of the machine that the next one reads."""

from __future__ import annotations

import os
import secrets
import signal
from pathlib import Path

import pytest
from agentrl_sandboxes import ProcessBackend
from agentrl_sandboxes.guest.disk import SHARED
from agentrl_sandboxes.guest.processes import children
from agentrl_sandboxes.host.identity import is_root

from agentrl.sandbox import SandboxLimits


@pytest.mark.skipif(not is_root(), reason="programs of an ordinary user are that user itself")
async def test_what_a_program_leaves_in_shared_places_ends_with_its_sandbox() -> None:
    """Fails if only the sandbox's own directory is deleted: inputs kept in /tmp were found by the
    next turn and by other rollouts."""
    mark = f"agentrl-test-{secrets.token_hex(8)}"
    places = [Path(place) for place in SHARED if Path(place).is_dir()]
    script = "".join(
        f"echo kept > {place}/{mark}-file; mkdir -p {place}/{mark}-dir/a/b;"
        f"ln -s /etc/passwd {place}/{mark}-dir/a/link; chmod 0 {place}/{mark}-dir;"
        for place in places
    )
    backend = ProcessBackend()
    try:
        sandbox = await backend.create(SandboxLimits())
        others = await backend.create(SandboxLimits())
        await others.exec(("sh", "-c", f"echo other > /tmp/{mark}-other"))
        assert (await sandbox.exec(("sh", "-c", script))).exit_code == 0
        left = [str(path) for place in places for path in place.glob(f"{mark}-*")]
        assert len(left) == 2 * len(places) + 1
        await sandbox.close()
        assert [str(path) for place in places for path in place.glob(f"{mark}-*")] == [
            f"/tmp/{mark}-other"
        ]
        await others.close()
    finally:
        await backend.close()
    assert not Path(f"/tmp/{mark}-other").exists()
    assert Path("/etc/passwd").exists()


@pytest.mark.skipif(not is_root(), reason="programs of an ordinary user are that user itself")
async def test_it_ends_also_where_the_supervisor_was_killed() -> None:
    """Fails if only the supervisor deletes it."""
    file = Path(f"/tmp/agentrl-test-{secrets.token_hex(8)}")
    others = set(children(os.getpid()))  # those of other tests, such as multiprocessing's tracker
    backend = ProcessBackend()
    try:
        sandbox = await backend.create(SandboxLimits())
        await sandbox.exec(("sh", "-c", f"echo kept > {file}"))
        assert file.read_text() == "kept\n"
        supervisors = set(children(os.getpid())) - others
        assert supervisors
        for supervisor in supervisors:
            os.kill(supervisor, signal.SIGKILL)
        await sandbox.close()
    finally:
        await backend.close()
    assert not file.exists()
