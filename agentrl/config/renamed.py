"""Keys of older run files that there are no more: what each is called now, or why it is gone.

A run or fit file, or an override, with such a key gets its sentence. The resolved `config.yaml` of
an older run directory is translated (`stored.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from agentrl.config.keys import KeyPath, Tree, found_at, value_at
from agentrl.config.presets import PRESETS

NOTHING = object()
"""Stands for a value that has no successor."""


def _same(value: Any, tree: Tree) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class RenamedKey:
    """A key that older run files have."""

    old: str
    """Dotted; `*` stands for any name."""
    new: str
    """Dotted; empty if the key is gone."""
    value: Callable[[Any, Tree], Any] = _same
    """The new value from the old one and the whole file; `NOTHING` without a successor."""
    reason: str = ""
    """Why a key is gone, as a sentence without its end."""
    defaults: tuple[Any, ...] = ()
    """Values of a removed key that change nothing; a run that had another gets a message."""
    form: str = ""
    """What to write where a value alone is not enough, as a sentence without its end."""


def _unless(*defaults: Any) -> Callable[[Any, Tree], Any]:
    """The value, unless it is one of these, which meant that nothing was asked for."""
    return lambda value, tree: NOTHING if value in defaults else value


def kl_target(value: Any, tree: Tree) -> Any:
    """The `algorithm.kl_target` of what `algorithm.kl_controller` was."""
    section = value if isinstance(value, Mapping) else {"kind": value}
    kind = section.get("kind", "fixed")
    if kind not in ("proportional", "window"):
        return NOTHING
    target = section.get("target", value_at(tree, "algorithm.kl_target"))
    if kind == "proportional" and isinstance(target, list | tuple) and target:
        target = target[0]  # the oldest runs have two numbers for either
    return target or (0.05 if kind == "proportional" else [0.05, 0.2])


def _only_mean(value: Any, tree: Tree) -> Any:
    whitens = value_at(tree, "algorithm.whiten_advantages")
    if whitens is None:
        preset = PRESETS.get(value_at(tree, "algorithm.preset") or "dr_grpo", {})
        whitens = preset.get("whiten_advantages")
    return "mean" if value and whitens else NOTHING


def _masking(value: Any, tree: Tree) -> Any:
    limit = value_at(tree, "schedule.max_version_lag")
    return {"mask": limit} if value == "mask" and limit is not None else NOTHING


def _best_by(value: Any, tree: Tree) -> Any:
    return {value: value_at(tree, "checkpoint.keep_best") or 0} if value else NOTHING


def _with_args(value: Any, tree: Tree) -> Any:
    target = value_at(tree, "reward.refresh.labeller")
    return {"target": target, "args": value} if value else NOTHING


def _detectors(value: Any, tree: Tree) -> Any:
    return False if value is False else NOTHING


def _one_step(value: Any, tree: Tree) -> Any:
    return 1.0 if value else NOTHING


_RAY = (
    "address",
    "rollout_workers",
    "trainer_ranks",
    "placement",
)

_GONE_KEYS: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("serving.repin_alpha", (0.01,),
     "its default is measured, and `agentrl simulate routing` compares others"),
    ("serving.repin_moves", (2,),
     "its default is measured, and `agentrl simulate routing` compares others"),
    ("sync.bucket_mb", (64,), "64 MiB served every network tried"),
    ("sandbox.limits.output_kb", (64,), "64 KiB of each output are kept, head and tail"),
    ("sandbox.limits.lifetime_s", (3600.0,),
     "a sandbox ends itself an hour after its start or its last wipe"),
    ("sandbox.pool.starts_at_once", (4, 16),
     "4 containers, or 16 pods, are started at the same time"),
    ("dataset.selection.uniform_share", (0.25,),
     "a quarter of the groups comes in the order of the dataset"),
    ("algorithm.std_ddof", (1,), "a group has the standard deviation of a sample (ddof 1); write "
     "an estimator of your own for another"),
    ("algorithm.std_eps", (1e-6,), "1e-6 is added to the standard deviation of a group; write an "
     "estimator of your own for another"),
    ("train.schedule_unit", ("optimizer_step",),
     "the learning rate moves with every optimizer step"),
    ("algorithm.distill.teacher.timeout_s", (300.0,),
     "a row has 300 s, with all attempts and the waits between them"),
    ("algorithm.distill.teacher.max_in_flight", (16,), "each rank asks for 16 rows at once"),
    ("reward.models.*.batch_tokens", (8192,),
     "a pass holds 8192 tokens, or the longest rollout where that is longer"),
    ("reward.overlong.length_unit", ("response", "sampled"),
     "it is 'sampled' where max_sampled_tokens is set, and else 'response'"),
    ("serving.stuck_after_s", (60.0,), "a server that produces nothing for 60 s is asked for a "
     "token, and has as long again"),
    ("serving.restarts_per_hour", (6,), "a server is started again six times an hour at most"),
    ("serving.transport", ("auto",), "turns take the lean way where a server offers it and its "
     "secret is known, and else HTTP"),
    ("schedule.dispatch", ("auto",), "minibatches are trained as soon as their rollouts have "
     "ended, wherever the numbers are those of a step that waits"),
    ("critic.lora.alpha", (32.0,), "the adapters of the critic have alpha 32; its learning rate is "
     "critic.learning_rate"),
    ("critic.lora.targets", (["all-linear"],), "the adapters of the critic are on every linear "
     "layer but the head"),
    ("rollout.turn_limit_s", (3600.0,), "an engine may decode one turn for an hour"),
    ("serving.max_prefill_tokens", (4096,), "4096 tokens of prompts are computed in one pass; for "
     "vLLM servers write serving.args: {max_num_batched_tokens: N}"),
    ("serving.lanes", (None,), "each core decodes a share of the sequences, as long as "
     "serving.max_batch_size has 16 for each"),
)  # fmt: skip
"""Removed keys: the values that change nothing, and why each is gone."""

_DIFFICULTY = {"pass_rate": "keep", "pass_rate_from": "source", "weight_by": "weight_by"}


RENAMED: tuple[RenamedKey, ...] = (
    *(RenamedKey(old=f"ray.{name}", new=f"runtime.{name}") for name in _RAY),
    RenamedKey(old="rollout.side_model", new="rollout.side_calls", value=_unless({})),
    *(
        RenamedKey(
            old=f"{section}.gpus_per_{part}", new=f"runtime.gpus.{part}", value=_unless(0.0)
        )
        for section in ("ray", "runtime")
        for part in ("trainer", "engine")
    ),
    RenamedKey(old="train.zero_stage", new="train.backend.zero_stage"),
    RenamedKey(old="train.offload", new="train.backend.offload"),
    *(
        RenamedKey(
            old=f"{where}.{old}", new=f"{where}.difficulty.{new}", value=_unless(None, "none")
        )
        for where in ("dataset", "eval.datasets.*")
        for old, new in _DIFFICULTY.items()
        if (where, old) != ("dataset", "weight_by")
    ),
    RenamedKey(
        old="reward.overlong_buffer_len", new="reward.overlong.buffer_len", value=_unless(None)
    ),
    RenamedKey(old="reward.overlong_penalty_factor", new="reward.overlong.penalty_factor"),
    RenamedKey(old="reward.filter_rounds", new="reward.dynamic_filtering.rounds"),
    RenamedKey(old="algorithm.kl_controller", new="algorithm.kl_target", value=kl_target),
    RenamedKey(
        old="algorithm.kl_controller.horizon", new="algorithm.kl_horizon", value=_unless(10000)
    ),
    RenamedKey(
        old="algorithm.ref_update_every",
        new="algorithm.reference_update.every_steps",
        value=_unless(0),
    ),
    RenamedKey(old="algorithm.ref_polyak", new="algorithm.reference_update.polyak"),
    RenamedKey(old="algorithm.no_std_norm", new="algorithm.whiten_advantages", value=_only_mean),
    RenamedKey(old="schedule.one_step_off", new="schedule.staleness_threshold", value=_one_step),
    RenamedKey(
        old="serving.devices_per_server", new="serving.args.tensor_parallel_size", value=_unless(1)
    ),
    RenamedKey(old="schedule.stale", new="schedule.max_version_lag", value=_masking),
    RenamedKey(old="health.watch", new="health.thresholds", value=_detectors),
    RenamedKey(old="checkpoint.best_by", new="checkpoint.keep_best", value=_best_by),
    RenamedKey(old="reward.refresh.args", new="reward.refresh.labeller", value=_with_args),
    RenamedKey(old="sandbox.namespace", new="sandbox.pod.namespace", value=_unless("")),
    RenamedKey(old="dataset.weight_by", new="dataset.selection", value=_unless("none")),
    RenamedKey(
        old="dataset.difficulty.weight_by", new="dataset.selection", value=_unless("none")
    ),
    RenamedKey(old="critic.lora.rank", new="critic.lora"),
    *(RenamedKey(old=old, new="", reason=reason, defaults=defaults)
      for old, defaults, reason in _GONE_KEYS),
)  # fmt: skip
"""Every key of an older run file that there is no more."""


def old_keys(data: Mapping[str, Any]) -> Iterator[str]:
    """For each old key in a run file, what to write instead.

    Example:
        >>> list(old_keys({"ray": {"trainer_ranks": 2}}))
        ['ray.trainer_ranks: this key is now runtime.trainer_ranks; write runtime.trainer_ranks: 2']
    """
    for renamed in RENAMED:
        for path, value in found_at(data, renamed.old):
            yield _message(renamed, path, value, dict(data))


def new_path(renamed: RenamedKey, path: KeyPath) -> KeyPath:
    """The key of today: `renamed.new` with the name that stands in the old path."""
    parts = renamed.new.split(".")
    return tuple(path[i] if part == "*" else part for i, part in enumerate(parts))


def _message(renamed: RenamedKey, path: KeyPath, value: Any, tree: Tree) -> str:
    old = ".".join(path)
    if not renamed.new:
        return f"{old}: this key is gone: {renamed.reason}; remove it"
    new = ".".join(new_path(renamed, path))
    found = renamed.value(value, tree)
    if found is NOTHING and renamed.form and value is not None:
        return f"{old}: {_yaml(value)} is not the form of its successor {new}; {renamed.form}"
    if found is NOTHING:
        return f"{old}: this key is now {new}, and {_yaml(value)} has no effect there; remove it"
    return f"{old}: this key is now {new}; write {new}: {_yaml(found)}"


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1000)
    return text.removesuffix("\n").removesuffix("...").strip()
