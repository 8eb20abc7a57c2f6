"""Images without Python: the supervisor's own interpreter, from the volume that holds it.

The image has one static busybox and nothing else; `test_image_without_python.py` runs the suite.
"""

from __future__ import annotations

import asyncio
import secrets
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from agentrl_sandboxes import DockerBackend, PooledBackend
from agentrl_sandboxes.docker.supervisor_volume import LABEL, ROOT, volume_name
from agentrl_sandboxes.host.interpreter import (
    START,
    PackedInterpreter,
    packed_interpreter,
)
from agentrl_sandboxes.host.leases import LEASE, OWNER, own_name
from agentrl_sandboxes.leftovers import collect

from agentrl.errors import SandboxUnavailable
from agentrl.sandbox import Outcome, Sandbox, SandboxLimits, SandboxSpec
from tests.sandboxes.docker.bare_images import BARE, make_bare

pytestmark = pytest.mark.docker

MIB = 2**20
LIMITS = SandboxLimits(wall_s=10.0, processes=24, disk_bytes=16 * MIB, memory_bytes=64 * MIB)


@pytest.fixture(scope="module")
def images() -> None:
    """The image of one file."""
    make_bare()


@pytest.fixture
async def docker(images: None) -> AsyncIterator[DockerBackend]:
    """Nothing of the host is in sight, so programs have no Python at all."""
    backend = DockerBackend(BARE)
    yield backend
    await backend.close()


async def test_image_with_one_file_is_enough(docker: DockerBackend) -> None:
    # Fails if the loader or the libraries of the interpreter are looked for in the image, or if
    # variables that the image sets for its own libraries reach it (LD_DEBUG would fill stderr).
    sandbox = await docker.create(LIMITS)
    result = await sandbox.exec(("/busybox", "sh", "-c", "echo $1; exit 7", "sh", "a b"))
    assert (result.stdout, result.stderr, result.exit_code) == ("a b\n", "", 7)
    await sandbox.write_file("deep/er", b"x")
    assert await sandbox.download(".", max_bytes=9) == {"deep/er": b"x"}


async def test_programs_see_nothing_of_the_interpreter_in_their_environment(
    docker: DockerBackend,
) -> None:
    # Fails if a path of ours leads programs to our libraries, or one of the image's is lost.
    sandbox = await docker.create(LIMITS)
    env = (await sandbox.exec(("/busybox", "env"))).stdout
    assert ROOT not in env
    assert {"LD_PRELOAD=/busybox", "LD_LIBRARY_PATH=/"} <= set(env.splitlines())


async def test_programs_cannot_change_the_interpreter(docker: DockerBackend) -> None:
    # All containers share the volume: a program that can write there owns every later sandbox.
    sandbox = await docker.create(LIMITS)
    script = (
        f"/busybox grep -c '{ROOT} [^ ]* ro,' /proc/mounts; exec 2>&1; echo x > {ROOT}/new; "
        f"for path in {ROOT}/{START} {ROOT}/bin/python3; do "
        "echo x >$path; /busybox chmod 777 $path; /busybox rm -f $path; done"
    )
    result = await sandbox.exec(("/busybox", "sh", "-c", script))
    assert result.stdout.startswith("1\n"), result
    assert result.stdout.count("Read-only file system") == 7, result


async def test_groups_are_forked_and_wiped_without_python(docker: DockerBackend) -> None:
    async def prepare(sandbox: Sandbox) -> None:
        await sandbox.write_file("repo/a", b"1")

    spec = SandboxSpec(key="task", prepare=prepare)
    pool = PooledBackend(docker, max_open=1, max_uses=3)
    reused: list[bool] = []
    for _ in range(3):
        sandbox = await pool.take(spec, LIMITS)
        reused.append(sandbox.origin.reused)
        assert await sandbox.download(".", max_bytes=9) == {"repo/a": b"1"}
        await sandbox.write_file("left", b"x")
        await sandbox.close()
    await pool.close()
    assert True in reused


@pytest.fixture
async def fresh() -> AsyncIterator[PackedInterpreter]:
    """The interpreter under another name, so that no daemon has it yet."""
    interpreter = replace(packed_interpreter(), digest=secrets.token_hex(32))
    yield interpreter
    remove_volume(interpreter)
    assert not volumes(interpreter)


def volumes(interpreter: PackedInterpreter) -> list[str]:
    command = ["docker", "volume", "ls", "-q", "--filter", f"label={LABEL}={interpreter.digest}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def remove_volume(interpreter: PackedInterpreter) -> None:
    command = ["docker", "volume", "rm", "-f", volume_name(interpreter)]
    subprocess.run(command, capture_output=True, check=True)


async def test_starts_that_find_no_interpreter_wait_for_one(
    images: None, fresh: PackedInterpreter
) -> None:
    # Fails if a start takes a volume that is being filled for a full one, or fails meanwhile.
    backends = [DockerBackend(BARE, interpreter=fresh) for _ in range(2)]
    creates = [backend.create(LIMITS) for backend in backends for _ in range(2)]
    sandboxes = await asyncio.gather(*creates)
    results = [await sandbox.exec(("/busybox", "true")) for sandbox in sandboxes]
    assert [result.outcome for result in results] == [Outcome.OK] * 4
    assert volumes(fresh) == [volume_name(fresh)]
    await asyncio.gather(*(backend.close() for backend in backends))


async def test_interpreter_comes_back_after_it_was_pruned(
    images: None, fresh: PackedInterpreter
) -> None:
    # As `docker volume prune` in the middle of a long run.
    backend = DockerBackend(BARE, interpreter=fresh)
    await (await backend.create(LIMITS)).close()
    remove_volume(fresh)
    await (await backend.create(LIMITS)).close()
    await backend.close()


async def test_one_that_died_while_filling_is_waited_for_no_longer_than_it_lives(
    images: None, fresh: PackedInterpreter
) -> None:
    # Its volume is half full, and the name of its container is taken.
    dead = f"{OWNER}={own_name().rpartition(':')[0]}:1"
    lease = f"{LEASE}=99999999999"
    mount = f"type=volume,source={volume_name(fresh)},target={ROOT}"
    command = ["docker", "create", "--name", f"{volume_name(fresh)}-filling", "--mount", mount]
    command += ["--label", dead, "--label", lease, BARE, "-"]
    subprocess.run(command, capture_output=True, check=True)
    backend = DockerBackend(BARE, interpreter=fresh)
    sandbox = await backend.create(LIMITS)
    assert (await sandbox.exec(("/busybox", "true"))).outcome is Outcome.OK
    await backend.close()


async def test_daemon_of_another_architecture_is_refused(
    images: None, fresh: PackedInterpreter
) -> None:
    backend = DockerBackend(BARE, interpreter=replace(fresh, machine="pdp11"))
    with pytest.raises(SandboxUnavailable, match=r"and this process.* on pdp11"):
        await backend.create(LIMITS)
    await backend.close()


async def test_gc_removes_interpreters_that_nobody_uses(
    images: None, fresh: PackedInterpreter
) -> None:
    backend = DockerBackend(BARE, interpreter=fresh)
    await backend.create(LIMITS)
    name = volume_name(fresh)
    assert name not in {item.name for item in await collect(dry_run=True)}
    await backend.close()
    assert name in {item.name for item in await collect(dry_run=True)}
    assert volumes(fresh)
    assert name in {item.name for item in await collect() if item.removed}
    assert not volumes(fresh)
