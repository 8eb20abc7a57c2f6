"""The ranks of a fit: this process is rank 0, the others are children that do as it does."""

from __future__ import annotations

import os
import pickle
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config.fit import FitConfig
from agentrl.errors import RanksParted, TrainError
from agentrl.fit.model import FitReference
from agentrl.fit.sets import FitSets, RankSetup
from agentrl.machine.processes.child import ChildEnded, ChildProcess
from agentrl.models.device import pick_device

if TYPE_CHECKING:
    from agentrl.train.backends.ranks import Ranks

_GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL for a rank that shall end."""
_MOST_BYTES = 2**20
"""Of a frame of a rank, which sends none."""


class FitCrew:
    """Children that are ranks 1 and up; `open` before this process joins, `close` in any case."""

    def __init__(self, config: FitConfig, *, run_dir: Path) -> None:
        """Nothing is started yet.

        Args:
            config: with the number of steps, and the device that was asked for.
            run_dir: gets logs of the others.
        """
        self._config, self._run_dir = config, run_dir
        self._children: list[ChildProcess] = []

    def open(
        self,
        sets: FitSets,
        *,
        base: Path,
        checkpoint: Path | None,
        reference: FitReference | None,
        stack: ExitStack,
    ) -> Ranks | None:
        """Start the others and join them; None where one process needs no group.

        Args:
            sets: encoded data.
            base: folder that relative paths of the config start from.
            checkpoint: to go on from.
            reference: model whose log-probabilities are in the run directory.
            stack: closes the group, and ends the children.

        Raises:
            TrainError: a rank did not come.
        """
        config = self._config
        if config.ranks == 1 and config.train.backend.kind == "torch":
            return None
        from agentrl.train.backends.ranks import Meeting

        meeting = Meeting()
        stack.callback(meeting.close)
        stack.callback(self.close)
        logs = self._run_dir / "logs"
        logs.mkdir(exist_ok=True)
        for rank in range(1, config.ranks):
            setup = RankSetup(
                config=of_rank(config, rank),
                sets=sets,
                base=base.resolve(),
                run_dir=self._run_dir,
                checkpoint=checkpoint,
                reference=reference,
                address=meeting.address,
                rank=rank,
                log=logs / f"rank-{rank}.log",
            )
            with setup.log.open("ab") as output:
                child = ChildProcess(
                    "agentrl.fit.rank_main:serve",
                    output=output,
                    env=_environment(config),
                    most_bytes=_MOST_BYTES,
                    grace_s=_GRACE_S,
                )
            self._children.append(child)
            child.send({}, pickle.dumps(setup))
        try:
            return join(meeting.address, 0, of_rank(config, 0), stack)
        except RanksParted as error:
            raise TrainError(
                f"the {config.ranks} ranks of the fit did not meet; {logs}/rank-N.log says what "
                f"each of them did: {error}"
            ) from None

    def order(self, do: str, **what: Any) -> None:
        """Have all others do what this process is about to do.

        Raises:
            TrainError: one of them has ended.
        """
        for rank, child in enumerate(self._children, start=1):
            try:
                child.send({"do": do, **what})
            except ChildEnded as error:
                raise TrainError(
                    f"rank {rank} of the fit has ended ({error}); its last words are in "
                    f"{self._run_dir}/logs/rank-{rank}.log"
                ) from None

    def close(self) -> None:
        """End the others. Idempotent."""
        children, self._children = self._children, []
        for child in children:
            try:
                child.send({"do": "end"})
            except ChildEnded:
                continue  # `close` reaps it
            finally:
                child.close()


def join(address: str, rank: int, config: FitConfig, stack: ExitStack) -> Ranks:
    """Take part in the group at `address`.

    Args:
        address: of the meeting.
        rank: of this process.
        config: that of this rank.
        stack: closes the group.

    Raises:
        TrainError: not all ranks came in time.
        ConfigError: there are fewer GPUs than ranks.
    """
    from agentrl.train.backends.ranks import Ranks

    device = pick_device(config.model.device)
    ranks = Ranks(address, rank=rank, world_size=config.ranks, device=device)
    stack.callback(ranks.close)
    return ranks


def of_rank(config: FitConfig, rank: int) -> FitConfig:
    """The config of a rank: on GPUs each has the device of its number."""

    name = config.model.device
    if config.ranks == 1 or name not in ("auto", "cuda") or pick_device(name).type != "cuda":
        return config
    model = config.model.model_copy(update={"device": f"cuda:{rank}"})
    return config.model_copy(update={"model": model})


def _environment(config: FitConfig) -> dict[str, str]:
    """The cores of the machine, divided among the ranks."""
    cores = max(1, (os.cpu_count() or 1) // config.ranks)
    return {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(cores))}
