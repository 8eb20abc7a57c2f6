"""Which actor gets which share of which machine: a plan, computed before anything is started.

    disaggregated    [worker] [worker] ... [rank] [rank] ... [engine] [engine] ...
    colocated        [worker] [worker] ... [rank + engine] [rank + engine] ...

A bracket is a bundle: resources of one machine that are reserved together. Pure; knows no Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from agentrl.config.fleet import WIDTHS, RayRuntime, ServingSection
from agentrl.errors import ConfigError

Resources = Mapping[str, float]
"""Ray's names: `CPU`, `GPU`, `memory`, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The bundle of one actor, and its share of it."""

    bundle: int
    """Index into `Layout.bundles`."""
    cpus: float
    """CPUs it counts for; Ray keeps the books, nothing stops an actor from using more."""
    gpus: float
    """GPUs that are made visible to it; below 1 it shares one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A plan for all actors of a run."""

    bundles: tuple[Resources, ...]
    """Resource bundles, each on one machine."""
    workers: tuple[Slot, ...]
    """Slots of the rollout workers."""
    ranks: tuple[Slot, ...]
    """Slots of the trainer ranks."""
    engines: tuple[Slot, ...]
    """Of the vLLM servers that are started here; an embedded engine lives in its trainer rank."""

    @property
    def total(self) -> Resources:
        """Resources of all bundles together.

        Example:
            >>> from agentrl.config.fleet import EmbeddedServing
            >>> section = RayRuntime(rollout_workers=2, gpus=1)
            >>> dict(plan(section, EmbeddedServing()).total)
            {'CPU': 3.0, 'GPU': 1.0}
        """
        names = sorted({name for bundle in self.bundles for name in bundle})
        return {name: sum(bundle.get(name, 0.0) for bundle in self.bundles) for name in names}


def plan(section: RayRuntime, serving: ServingSection) -> Layout:
    """Lay out the actors of a run.

    Raises:
        ConfigError: colocated engines that cannot share the devices of the trainer ranks.
    """
    started = serving.replicas if serving.engine == "vllm" else 0
    bundles: list[Resources] = [_bundle(cpus=1, gpus=0) for _ in range(section.rollout_workers)]
    workers = [Slot(bundle=index, cpus=1, gpus=0) for index in range(section.rollout_workers)]
    shared = section.placement == "colocated" and started > 0
    rank_gpus, engine_gpus = section.gpus_per_trainer, section.gpus_per_engine
    if shared:
        _check_colocated(section, started)
        # Ray lends one device to two actors only if each of them asks for a part of it.
        device = max(rank_gpus, engine_gpus)
        rank_gpus = engine_gpus = device / 2
    first = len(bundles)
    for index in range(section.trainer_ranks):
        with_engine = shared and index < started
        gpus = rank_gpus + (engine_gpus if with_engine else 0.0)
        bundles.append(_bundle(cpus=2 if with_engine else 1, gpus=gpus))
    ranks = [Slot(bundle=first + i, cpus=1, gpus=rank_gpus) for i in range(section.trainer_ranks)]
    engines = []
    for index in range(started):
        bundle = first + index
        if not shared:
            bundle = len(bundles)
            bundles.append(_bundle(cpus=1, gpus=engine_gpus))
        engines.append(Slot(bundle=bundle, cpus=1, gpus=engine_gpus))
    return Layout(
        bundles=tuple(bundles), workers=tuple(workers), ranks=tuple(ranks), engines=tuple(engines)
    )


def missing(needed: Sequence[Resources], have: Sequence[Resources]) -> str:
    """Resources that these machines lack for these bundles; empty if they fit.

    Bundles are put where they fit first, largest first, as Ray does when it packs; a plan that
    only a cleverer order would fit is called too large.

    Args:
        needed: one entry a bundle.
        have: one entry a machine.

    Example:
        >>> missing([{"CPU": 1, "GPU": 1}] * 2, [{"CPU": 8, "GPU": 1}])
        'needs 2 GPU, found 1'
    """
    names = sorted({name for bundle in needed for name in bundle})
    short = []
    for name in names:
        want = sum(bundle.get(name, 0.0) for bundle in needed)
        found = sum(machine.get(name, 0.0) for machine in have)
        if want > found:
            short.append(f"{want:g} {name}, found {found:g}")
    if short:
        return "needs " + "; needs ".join(short)
    left = [dict(machine) for machine in have]
    for bundle in sorted(needed, key=lambda b: (-b.get("GPU", 0.0), -b.get("CPU", 0.0))):
        for machine in left:
            if all(machine.get(name, 0.0) >= amount for name, amount in bundle.items()):
                for name, amount in bundle.items():
                    machine[name] -= amount
                break
        else:
            return f"needs {describe(bundle)} on one machine, but the machines have " + ", ".join(
                describe({name: machine.get(name, 0.0) for name in names}) for machine in have
            )
    return ""


def engine_width(serving: ServingSection) -> int:
    """Devices, and worker processes, of one engine."""
    if serving.engine == "embedded":
        return 1
    widths = (
        int(value)
        for name, value in serving.args.items()
        if name.lstrip("-").replace("-", "_") in WIDTHS
    )
    return prod(widths)


def describe(resources: Resources) -> str:
    """As in `2 CPU + 1 GPU`."""
    return " + ".join(f"{amount:g} {name}" for name, amount in sorted(resources.items()))


def _bundle(*, cpus: float, gpus: float) -> Resources:
    return {"CPU": float(cpus), **({"GPU": float(gpus)} if gpus else {})}


def _check_colocated(section: RayRuntime, engines: int) -> None:
    if engines > section.trainer_ranks:
        raise ConfigError(
            f"runtime.placement is colocated, but {engines} engines (serving.replicas) cannot lie "
            f"on {section.trainer_ranks} trainer ranks; raise runtime.trainer_ranks, lower "
            "serving.replicas, or use disaggregated"
        )
    if (most := max(section.gpus_per_trainer, section.gpus_per_engine)) > 1:
        raise ConfigError(
            f"runtime.placement is colocated with runtime.gpus: {most:g}, but only one device can "
            "be shared; use at most 1, or disaggregated"
        )
