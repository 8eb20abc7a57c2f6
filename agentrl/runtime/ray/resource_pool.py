"""Reserved resources of a cluster, and the actors that live on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Self

from agentrl.errors import ConfigError
from agentrl.runtime.assembly.layout import Layout, Slot, describe
from agentrl.runtime.ray.actor import ENVIRONMENT

logger = logging.getLogger(__name__)


class ResourcePool:
    """All bundles of a run, reserved together or not at all.

    Actors made here die with the driver: none is detached.
    """

    def __init__(self, layout: Layout, group: Any) -> None:
        self.layout = layout
        self._group = group

    @classmethod
    async def reserve(cls, layout: Layout, *, limit_s: float) -> Self:
        """Reserve the bundles of a plan.

        Raises:
            ConfigError: the cluster has no room for them within `limit_s`; says what is missing.
        """
        from ray.util.placement_group import placement_group, remove_placement_group

        group = placement_group([dict(bundle) for bundle in layout.bundles], strategy="PACK")
        try:
            async with asyncio.timeout(limit_s):
                await group.ready()
        except TimeoutError:
            found = _found()
            remove_placement_group(group)
            raise ConfigError(
                f"ray: {describe(layout.total)} in {len(layout.bundles)} bundles (the largest "
                f"{describe(max(layout.bundles, key=lambda b: (b.get('GPU', 0), b['CPU'])))}) are "
                f"not free within {limit_s:g} s: {found}; wait for other jobs, join more machines, "
                "or lower runtime.rollout_workers, runtime.trainer_ranks or serving.replicas"
            ) from None
        return cls(layout, group)

    def start(self, actor_class: type, slot: Slot, *args: Any, env: Mapping[str, str]) -> Any:
        """Start an actor on its bundle; returns Ray's handle at once.

        Args:
            actor_class: plain; its methods are coroutines.
            slot: its device slot.
            args: of its constructor.
            env: environment variables of its process.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=slot.bundle
        )
        remote = ray.remote(actor_class)
        return remote.options(
            num_cpus=slot.cpus,
            num_gpus=slot.gpus,
            scheduling_strategy=strategy,
            runtime_env={"env_vars": {**ENVIRONMENT, **env}},
            # Every group of rollouts is a call that lasts as long as it does.
            max_concurrency=10_000,
            max_restarts=0,
        ).remote(*args)

    def release(self) -> None:
        """Release the bundles; actors on them are ended."""
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(self._group)


def _found() -> str:
    import ray

    def part(resources: Mapping[str, float]) -> str:
        return describe({name: resources.get(name, 0.0) for name in ("CPU", "GPU")})

    return f"the cluster has {part(ray.cluster_resources())}, free are " + part(
        ray.available_resources()
    )
