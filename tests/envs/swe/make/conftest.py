from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from agentrl_envs.swe import read_tasks
from agentrl_envs.swe.make import environment_for, make_tasks

from tests.envs.swe.make.swe_making import Quiet, Shaky, request_for
from tests.envs.swe.make.swe_sdists import copy_environment, shapes, write_sdist


@pytest.fixture(scope="module")
def packages():
    """Where sandboxes of another user see it: pytest's own folders are private."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield copy_environment(Path(folder))


@pytest.fixture
def made(backend, packages, tmp_path):
    """Make tasks of a library and give the rows and the progress."""
    write_sdist(tmp_path / "index", "shapes", "1.0", shapes())

    async def run(*, hidden=False, broken=(), **changed):
        request = request_for(tmp_path, **changed)
        if not (request.out / "environment").exists():
            request.out.mkdir(exist_ok=True)
            if hidden:
                shutil.copytree(packages, request.out / "environment")
            else:
                (request.out / "environment").symlink_to(packages)
        environment = environment_for(request)
        progress = Quiet()
        shaky = Shaky(backend, progress, broken)
        await make_tasks(request, environment, shaky, progress)
        return list(read_tasks(request.out)), progress, request, environment

    return run
