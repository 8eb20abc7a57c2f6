"""First duties of every actor of a run: see the run's folder and log into it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

from agentrl.config.plan import Plan
from agentrl.disk.logs import log_to, quiet_libraries
from agentrl.disk.proof_lines import PROOFS
from agentrl.errors import RunError

logger = logging.getLogger(__name__)

INLINE_BYTES = 16 * 1024
"""Results of rollout workers up to this size come back in the answer itself: the reports of a
driver do. Larger ones, as groups of trajectories are, stay in the shared memory of the machine that
made them until a rank asks for them. (Ray's own bound of 100 KiB lets small groups through.)"""

ENVIRONMENT = {"RAY_USE_UVLOOP": "0", "RAY_worker_niceness": "0"}
"""Of every actor: environments, sandboxes and engines run on the event loop they run on without
Ray, and as nice as the driver is. With the 15 of Ray whatever else the machine does comes first,
commands in sandboxes of the same run included: ranks and servers starve, and do not even start."""
SHARED_FOLDER_S = 10.0
"""Seconds until a new file is seen on another machine, as network file systems do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSpec:
    """Arguments that every actor of a run gets when it is made."""

    name: str
    """Name, as in its log file: `worker-0`, `rank-1`."""
    plan: Plan
    """Of the run; `model.path` is a folder or hub name that every machine can read."""
    run_dir: Path
    """Absolute directory of the run."""
    host: str | None
    """Address to listen on, where all actors are on one machine; None takes the machine's own."""
    identity: str
    """`run_identity` of `run_dir` as the driver sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """Arguments of a trainer rank beside those of every actor."""

    rank: int
    """Rank of the process, from 0."""
    world_size: int
    """Ranks that train together."""
    threads: int
    """Threads it computes with."""
    trajectories: Path
    """Folder of the store."""
    checkpoint: Path | None
    """Checkpoint to go on from; None begins with the model of the config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorLocation:
    """Machine, process and device of an actor."""

    node_ip: str
    """Address of its machine for the others."""
    pid: int
    """Process id of the actor."""


def set_up_actor(spec: ActorSpec) -> contextlib.ExitStack:
    """Check the run's folder and write into `logs/NAME.log`; close the result at the end.

    Whatever the process prints goes there, too: Ray's own files are gone with the cluster.

    Raises:
        RunError: this machine does not see the folder.
    """
    quiet_libraries()
    deadline = time.monotonic() + SHARED_FOLDER_S
    while run_identity(spec.run_dir) != spec.identity:
        if time.monotonic() > deadline:
            raise RunError(
                f"{spec.name} on {actor_location().node_ip} does not see the run directory "
                f"{spec.run_dir} of the driver; run.dir must be a folder that all machines of the "
                "cluster share, under the same path"
            )
        time.sleep(0.1)
    stack = contextlib.ExitStack()
    folder = spec.run_dir / "logs"
    folder.mkdir(exist_ok=True)
    path = folder / f"{spec.name}.log"
    with path.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    stack.enter_context(log_to(path))
    logger.info("%s: process %d on %s", spec.name, os.getpid(), actor_location().node_ip)
    return stack


def listening_host(spec: ActorSpec) -> str:
    """Address on which the other actors of the run can reach this one."""
    return spec.host or actor_location().node_ip


def actor_location() -> ActorLocation:
    """Machine, process and device of this actor."""
    import ray

    return ActorLocation(node_ip=ray.util.get_node_ip_address(), pid=os.getpid())


def run_identity(run_dir: Path) -> str:
    """Hash of `run.json`, which differs from that of any other run under the same path.

    Without the proofs, which ranks and engines add to it while other processes start.
    """
    try:
        identity = json.loads((run_dir / "run.json").read_bytes())
    except (OSError, ValueError):
        return ""
    told = {key: value for key, value in identity.items() if key != PROOFS}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def threads_of_a_rank(ranks: int) -> int:
    """Cores that one trainer rank computes with on a CPU: the user's word, or an equal part."""
    if said := os.environ.get("OMP_NUM_THREADS"):
        return int(said)
    return max(1, len(os.sched_getaffinity(0)) // ranks)
