"""The Ray cluster of a run: one of its own on this machine, or one that already runs.

What is started here is gone when the run ends, however it ends: Ray's processes die with the
process that started them (the kernel sees to it), and a shell that only waits for that process
to end removes what they leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from agentrl.config.fleet import RayRuntime, ServingSection
from agentrl.errors import ConfigError
from agentrl.plugins.distribution import install_command
from agentrl.runtime.assembly.layout import Layout, Resources, describe, missing, plan

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 512 * 2**20
"""Shared memory of a cluster of our own; a step's trajectories are a few tens of MB, and Ray moves
what does not fit to the disk."""
REACH_S = 5.0
"""Seconds until a head must accept a connection."""
ASK_S = 60.0
"""Seconds until a head must list its machines."""
HOW_TO_START = (
    "start one with `ray start --head --port=6379` on the first machine and `ray start "
    "--address=HEAD:6379` on the others, or leave runtime.address out to use this machine alone; a "
    "cluster that wants a token is joined with RAY_AUTH_MODE=token in the environment"
)

_GUARD = """
trap "" INT TERM HUP
cat > /dev/null
gone=0 round=0
while [ "$gone" -lt 2 ] && [ "$round" -lt 100 ]; do
    sleep 0.5
    for process in /proc/[0-9]*; do
        [ "$process" = "/proc/$2" ] && continue
        ls -l "$process/fd" 2> /dev/null | grep -qF -- "$1/" && kill -9 "${process#/proc/}"
    done
    if [ -e "$1" ]; then gone=0; else gone=$((gone + 1)); fi
    rm -rf -- "$1"
    round=$((round + 1))
done
"""
"""Ends what else has a file of Ray's folder open, and removes the folder, until it stays away for
two looks: what is ending on a loaded machine may write to it again seconds later."""

_ASK = (
    "import json, sys, ray, logging\n"
    "ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)\n"
    "print(json.dumps([n['Resources'] for n in ray.nodes() if n['Alive']]))\n"
)


async def check_cluster(section: RayRuntime, serving: ServingSection) -> str:
    """Check, without starting anything, that the cluster has room for the actors of a run.

    Returns:
        What was found, for the report.

    Raises:
        ConfigError: Ray is not installed, the head cannot be reached, or the cluster is too
            small; says what was found and what is needed.
    """
    _import_ray()
    layout = plan(section, serving)
    address = section.address
    if address is None:
        have: Sequence[Resources] = [{**layout.total, "GPU": float(_gpus_here())}]
        where = "this machine"
    else:
        await asyncio.to_thread(_check_reachable, address)
        have = await asyncio.to_thread(_ask_cluster, address)
        where = f"the cluster at {address} ({len(have)} machines)"
    if short := missing(layout.bundles, have):
        advice = _advice(section, serving)
        raise ConfigError(f"ray: {where} is too small: {short}; {advice}")
    return f"{describe(layout.total)} on {where}"


@contextlib.asynccontextmanager
async def open_cluster(
    section: RayRuntime, serving: ServingSection, layout: Layout
) -> AsyncIterator[None]:
    """Connect this process to Ray, and start it first if there is no address.

    Blocks the event loop for the seconds that takes: the kernel signals Ray's processes when the
    *thread* that started them ends, so it must be the main thread.

    Raises:
        ConfigError: as `check_cluster`, for a cluster that cannot be reached.
    """
    ray = _import_ray()
    if ray.is_initialized():
        raise ConfigError("ray: this process is connected to Ray already; call ray.shutdown()")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    for name in ("ray", "ray.serve", "ray._private"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if section.address is None:
        _check_gpus_here(section, serving, layout)
        opening = _own_cluster(ray, layout)
    else:
        opening = _joined_cluster(ray, section.address)
    with opening:
        yield


def machines() -> Sequence[Resources]:
    """Resources of each machine of the cluster, once this process is connected."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


@contextlib.contextmanager
def _own_cluster(ray: Any, layout: Layout) -> Any:
    folder = Path(tempfile.mkdtemp(prefix="agentrl-ray-"))
    guard = _remove_when_we_end(folder)
    try:
        with _signal_handlers_kept():
            ray.init(
                address="local",
                num_cpus=int(layout.total.get("CPU", 1)),
                num_gpus=_gpus_here(),
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                log_to_driver=False,
                configure_logging=False,
                _temp_dir=str(folder),
            )
        yield
    finally:
        with _signal_handlers_kept():
            ray.shutdown()
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


@contextlib.contextmanager
def _joined_cluster(ray: Any, address: str) -> Any:
    _check_reachable(address)
    try:
        with _signal_handlers_kept():
            ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"runtime.address {address!r} cannot be joined: {error}; {HOW_TO_START}"
        ) from error
    try:
        yield
    finally:
        with _signal_handlers_kept():
            ray.shutdown()


@contextlib.contextmanager
def _signal_handlers_kept() -> Any:
    """Ray takes SIGTERM for itself and would end the process where the run ends its step."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _remove_when_we_end(folder: Path) -> subprocess.Popen[bytes]:
    """A shell that reads a pipe which only this process holds: it ends when we do, even by kill -9.

    Most of Ray ends with us, too, but its agents try for a minute to reach a head that is gone.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "agentrl-ray-guard", str(folder), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"runtime is ray, but Ray is not installed; run {install_command('ray')}, or set "
            "runtime: local"
        ) from error
    return ray


def _check_reachable(address: str) -> None:
    """A connection to the head, before Ray waits a minute for it.

    Raises:
        ConfigError: no head answers there, or the address is none.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise ConfigError(
            f"runtime.address is {address!r}, expected 'auto' or HOST:PORT of the head; the driver "
            "must run on a machine of the cluster"
        )
    try:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()
    except OSError as error:
        raise ConfigError(
            f"runtime.address {address}: no Ray head answers ({error}); {HOW_TO_START}"
        ) from error


def _ask_cluster(address: str) -> Sequence[Resources]:
    """Resources of each machine, read by a process of its own: reading makes it a driver.

    Raises:
        ConfigError: it does not say.
    """
    command = [sys.executable, "-c", _ASK, address]
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=ASK_S, env=env, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"runtime.address {address}: the head does not say what it has within {ASK_S:g} s; "
            "look at `ray status` there"
        ) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(f"runtime.address {address!r} cannot be joined: {last}; {HOW_TO_START}")
    said = json.loads(done.stdout.strip().splitlines()[-1])
    return [{name: machine.get(name, 0.0) for name in ("CPU", "GPU")} for machine in said]


def _gpus_here() -> int:
    import torch

    return torch.cuda.device_count()


def _check_gpus_here(section: RayRuntime, serving: ServingSection, layout: Layout) -> None:
    machine = {**layout.total, "GPU": float(_gpus_here())}
    if short := missing(layout.bundles, [machine]):
        raise ConfigError(f"ray: this machine is too small: {short}; {_advice(section, serving)}")


def _advice(section: RayRuntime, serving: ServingSection) -> str:
    servers = serving.replicas if serving.engine == "vllm" else 0
    return (
        f"runtime.rollout_workers ({section.rollout_workers}) take a CPU each, "
        f"runtime.trainer_ranks ({section.trainer_ranks}) a CPU and "
        f"{section.gpus_per_trainer:g} GPU, engines ({servers}) a CPU and "
        f"{section.gpus_per_engine:g} GPU; lower one of them, or join more machines"
    )
