"""Every backend of this machine works for an ordinary user, in what asks most of the kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from agentrl_sandboxes import BACKENDS

from agentrl.types.finding import Status

pytestmark = pytest.mark.slow

IMPORTANT = (
    "output_is_captured",
    "python_is_there",
    "unreadable_file",
    "traversal_is_refused",
    "timeout_kills_daemons",
    "killing_the_parent_does_not_help",
    "fork_bomb",
    "process_limit",
    "processes_up_to_the_limit",
    "memory_hog_is_oom",
    "disk_fill",
    "no_privileges",
    "no_mounts_and_no_new_namespaces",
    "supervisor_is_protected",
    "host_files_are_invisible",
    "network_is_cut_off",
    "nothing_is_left_after_a_crash",
    "trees_of_any_shape_end_no_sandbox",
    # Here no cgroup can be made, so these show what counting and forbidding are worth.
    "memory_of_every_kind_is_bounded",
    "files_without_content_are_bounded",
    "memory_of_no_process_counts",
    "memory_below_the_limit",
)

ORDINARY = """
import asyncio, json, os, sys
uncovered = json.loads(sys.argv[1])
if uncovered:
    from agentrl_sandboxes.guest.stage import uncover
    uncover(*uncovered)
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
    os.environ["HOME"] = "/nonexistent"
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[3], "null", *sys.argv[2:]])

from agentrl.testing.sandbox_check.suite import run_suite
from agentrl_sandboxes import BACKENDS

async def main():
    assert os.getuid() != 0
    backend = BACKENDS[sys.argv[2]]()
    found = {r.check.name: [r.status, r.detail] for r in await run_suite(
        backend, names=sys.argv[4:], at_once=4)}
    await backend.close()
    print(json.dumps(found))

asyncio.run(main())
"""
"""Runs checks as an ordinary user who can reach interpreter and sources, wherever they are."""


# Whoever may talk to a daemon has its rights, so there is no ordinary user of docker; nor of a
# cluster.
@pytest.mark.parametrize(
    "backend_name", sorted({*BACKENDS} - {"docker", "kubernetes"}), indirect=True
)
@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
def test_backend_works_for_an_ordinary_user(backend_name: str) -> None:
    # Fails if a bind source, the interpreter or an id map needs the rights of the real root.
    sources = [str(Path(path).resolve()) for path in sys.path if Path(path).is_dir()]
    places = {str(Path(sys.base_prefix).resolve()), str(Path(sys.prefix).resolve()), *sources}
    places.add(sysconfig.get_path("purelib"))
    hidden = sorted(path for path in places if path.startswith("/root/"))
    outermost = [p for p in hidden if not any(p != q and p.startswith(q + "/") for q in hidden)]
    run = subprocess.run(
        [
            *(sys.executable, "-c", ORDINARY, json.dumps(["/root", outermost])),
            *(backend_name, ORDINARY, *IMPORTANT),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sources), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    failed = {name: detail for name, (status, detail) in found.items() if status == Status.FAIL}
    assert not failed
    assert set(found) == set(IMPORTANT)
