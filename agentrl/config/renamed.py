"""Keys of older run files: what each is called now, and what becomes of its value.

A run file or an override with an old key gets a message that names the new one. The resolved
`config.yaml` of an older run directory is translated, so that the run resumes and can be looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from agentrl.config.base import Section
from agentrl.config.fleet import WIDTHS
from agentrl.config.keys import inner_kinds, is_table, kind_of, only_of_others, sections_at
from agentrl.config.presets import PRESETS
from agentrl.config.schema import RolloutSection, RunConfig

logger = logging.getLogger(__name__)

Tree = dict[str, Any]
KeyPath = tuple[str, ...]
_GONE = object()
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
    """The new value from the old one and the whole file; `_GONE` where nothing takes its place."""
    reason: str = ""
    """Why a key is gone, as a sentence without its end."""
    defaults: tuple[Any, ...] = ()
    """Values of a removed key that change nothing; a run that had another gets a message."""
    form: str = ""
    """What to write where a value alone does not say it, as a sentence without its end."""


def _unless(*defaults: Any) -> Callable[[Any, Tree], Any]:
    """The value, unless it is one of these, which meant that nothing was asked for."""
    return lambda value, tree: _GONE if value in defaults else value


def _kl_target(value: Any, tree: Tree) -> Any:
    name = _at(tree, "algorithm.kl_controller")
    name = name.get("kind") if isinstance(name, Mapping) else name
    if name == "proportional" and isinstance(value, int | float):
        return value
    if name in (None, "fixed") or not isinstance(value, list | tuple) or not value:
        return _GONE
    return value[0] if name == "proportional" else value


def _only_mean(value: Any, tree: Tree) -> Any:
    whitens = _at(tree, "algorithm.whiten_advantages")
    if whitens is None:
        preset = PRESETS.get(_at(tree, "algorithm.preset") or "dr_grpo", {})
        whitens = preset.get("whiten_advantages")
    return "mean" if value and whitens else _GONE


def _one_step(value: Any, tree: Tree) -> Any:
    return 1.0 if value else _GONE


_RAY = (
    "address",
    "rollout_workers",
    "trainer_ranks",
    "gpus_per_trainer",
    "gpus_per_engine",
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
    ("serving.stuck_after_s", (60.0,), "a server that produces nothing for 60 s is asked for a "
     "token, and has as long again"),
    ("serving.restarts_per_hour", (6,), "a server is started again six times an hour at most"),
)  # fmt: skip
"""Removed keys: the values that change nothing, and why each is gone."""
_BUDGET_SAYS_IT = "it is 'sampled' where max_sampled_tokens is set, and else 'response'"

_DIFFICULTY = {"pass_rate": "keep", "pass_rate_from": "source", "weight_by": "weight_by"}


RENAMED: tuple[RenamedKey, ...] = (
    *(RenamedKey(old=f"ray.{name}", new=f"runtime.{name}") for name in _RAY),
    RenamedKey(old="train.zero_stage", new="train.backend.zero_stage"),
    RenamedKey(old="train.offload", new="train.backend.offload"),
    *(
        RenamedKey(
            old=f"{where}.{old}", new=f"{where}.difficulty.{new}", value=_unless(None, "none")
        )
        for where in ("dataset", "eval.datasets.*")
        for old, new in _DIFFICULTY.items()
    ),
    RenamedKey(
        old="reward.overlong_buffer_len", new="reward.overlong.buffer_len", value=_unless(None)
    ),
    RenamedKey(old="reward.overlong_penalty_factor", new="reward.overlong.penalty_factor"),
    RenamedKey(old="reward.filter_rounds", new="reward.dynamic_filtering.rounds"),
    RenamedKey(
        old="algorithm.kl_target",
        new="algorithm.kl_controller.target",
        value=_kl_target,
        form="write algorithm.kl_controller: {kind: window, target: [0.05, 0.2]} for the lowest "
        "and the highest KL, or {kind: proportional, target: 0.05} for one; both in nats a token, "
        "where trainers that add the KL up over a rollout have numbers like 6",
    ),
    RenamedKey(old="algorithm.kl_horizon", new="algorithm.kl_controller.horizon"),
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
    RenamedKey(old="reward.overlong.length_unit", new="", reason=_BUDGET_SAYS_IT,
               defaults=("response", "sampled")),
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
        for path, value in _found(data, renamed.old):
            yield _message(renamed, path, value, dict(data))


def translate(data: Mapping[str, Any], root: type[Section] = RunConfig) -> Tree:
    """The keys of today from those of a resolved config that any version wrote.

    Keys that no kind in the file reads are left out, as are those of a section that was not asked
    for. What is no key of any version stays, for the reader to complain about.
    """
    tree = _copy(data)
    _split_serving(tree)
    _without_rank_0(tree)
    _clip_before_normalize(tree)
    found = [(renamed, path, value) for renamed in RENAMED
             for path, value in _found(tree, renamed.old)]  # fmt: skip
    moved = [(renamed, path, renamed.value(value, tree)) for renamed, path, value in found]
    for renamed, path, value in found:
        _drop(tree, path)
        if not renamed.new and value not in renamed.defaults:
            name = ".".join(path)
            logger.warning("%s was %s and has no effect now: %s", name, value, renamed.reason)
    for renamed, path, value in moved:
        if renamed.new and value is not _GONE:
            put(tree, _new_path(renamed, path), value)
    _overlong_of_sampled(tree)
    return _pruned(tree, root, incomplete=bool(found))


def put(tree: Tree, path: Sequence[str], value: Any) -> None:
    """Set a key, making the sections on its way; a plain value in place of one becomes its key.

    Raises:
        ValueError: something on the way is no section; says which.
    """
    *parents, leaf = path
    node = tree
    for depth, name in enumerate(parents):
        child = node.get(name)
        if not isinstance(child, dict):
            kinds = sections_at(parents[: depth + 1])
            if child is not None and not (kinds and kinds[0].bare):
                raise ValueError(f"{name!r} is not a section")
            child = {} if child is None else {kinds[0].bare: child}
            node[name] = child
        node = child
    node[leaf] = value


def keep_kind(
    value: Mapping[str, Any], kinds: Sequence[type[Section]], kind: type[Section] | None = None
) -> Tree:
    """The keys of a section that its kind has, and those that no kind has.

    Args:
        value: the section.
        kinds: classes that it may be of.
        kind: the one that it is of; None if the section says so itself.
    """
    kind = kind or kind_of(kinds, value)
    if kind is None:
        return dict(value)
    idle, kept = only_of_others(kinds, kind), {}
    for key, item in value.items():
        own = inner_kinds(kind, key)
        if isinstance(item, dict) and len(own) == 1 and not is_table(kind, key):
            others = [inner for other in kinds for inner in inner_kinds(other, key)]
            item = keep_kind(item, others, own[0])
        if key not in idle:
            kept[key] = item
    return kept


def _split_serving(tree: Tree) -> None:
    """Servers that already run were once vLLM servers with `urls`, and had `args`."""
    serving = tree.get("serving")
    if not isinstance(serving, dict) or serving.get("engine") == "external":
        return
    urls = serving.pop("urls", None)
    if serving.get("engine") == "vllm" and urls:
        serving["engine"], serving["urls"] = "external", urls
        args = {n.lstrip("-").replace("-", "_"): v for n, v in (serving.get("args") or {}).items()}
        serving["args"] = {name: int(args[name]) for name in WIDTHS if name in args}


def _without_rank_0(tree: Tree) -> None:
    """Adapters of rank 0 once meant that there are none."""
    train = tree.get("train")
    lora = train.get("lora") if isinstance(train, dict) else None
    if isinstance(lora, dict) and lora.get("rank", 0) == 0:
        assert isinstance(train, dict)
        train["lora"] = None


def _clip_before_normalize(tree: Tree) -> None:
    """`reward.clip` once acted before `reward.normalize`, as `reward.clip_raw` does."""
    reward = tree.get("reward")
    if isinstance(reward, dict) and "clip_raw" not in reward and reward.get("normalize"):
        reward["clip_raw"] = reward.pop("clip", None)


def _overlong_of_sampled(tree: Tree) -> None:
    """The overlong penalty once counted sampled tokens against `rollout.max_response_tokens`."""
    overlong = _at(tree, "reward.overlong")
    if not isinstance(overlong, dict) or "max_sampled_tokens" in overlong:
        return
    if overlong.get("buffer_len") is not None:
        budget = _at(tree, "rollout.max_response_tokens")
        default = RolloutSection.model_fields["max_response_tokens"].default
        overlong["max_sampled_tokens"] = budget or default


def _pruned(tree: Tree, kind: type[Section], *, incomplete: bool) -> Tree:
    """Without keys of other kinds and, if `incomplete`, without sections that lack what they need.

    An optional section of an old file was not asked for if the key that says so had no value.
    """
    pruned: Tree = {}
    for key, value in tree.items():
        kinds = inner_kinds(kind, key)
        if not kinds or not isinstance(value, dict):
            pruned[key] = value
        elif is_table(kind, key):
            pruned[key] = {
                name: _section(item, kinds, optional=False, incomplete=incomplete)
                for name, item in value.items()
            }
        else:
            optional = kind.model_fields[key].default is None
            pruned[key] = _section(value, kinds, optional=optional, incomplete=incomplete)
    return pruned


def _section(
    value: Any, kinds: Sequence[type[Section]], *, optional: bool, incomplete: bool
) -> Any:
    if not isinstance(value, dict):
        return value
    kind = kind_of(kinds, value)
    if kind is None:
        return value
    pruned = _pruned(keep_kind(value, kinds), kind, incomplete=incomplete)
    needed = {name for name, field in kind.model_fields.items() if field.is_required()}
    return None if incomplete and optional and not needed <= pruned.keys() else pruned


def _message(renamed: RenamedKey, path: KeyPath, value: Any, tree: Tree) -> str:
    old = ".".join(path)
    if not renamed.new:
        return f"{old}: this key is gone: {renamed.reason}; remove it"
    new = ".".join(_new_path(renamed, path))
    found = renamed.value(value, tree)
    if found is _GONE and renamed.form and value is not None:
        return f"{old}: {_yaml(value)} is not the form of its successor {new}; {renamed.form}"
    if found is _GONE:
        return f"{old}: this key is now {new}, and {_yaml(value)} has no effect there; remove it"
    return f"{old}: this key is now {new}; write {new}: {_yaml(found)}"


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1000)
    return text.removesuffix("\n").removesuffix("...").strip()


def _new_path(renamed: RenamedKey, path: KeyPath) -> KeyPath:
    """`renamed.new` with the name that stands in the old path."""
    parts = renamed.new.split(".")
    return tuple(path[i] if part == "*" else part for i, part in enumerate(parts))


def _found(data: Mapping[str, Any], dotted: str) -> Iterator[tuple[KeyPath, Any]]:
    """Paths that a dotted name with `*` stands for, with their values."""
    name, _, rest = dotted.partition(".")
    for key in list(data) if name == "*" else [name] if name in data else []:
        value = data[key]
        if not rest:
            yield (key,), value
        elif isinstance(value, Mapping):
            yield from (((key, *path), found) for path, found in _found(value, rest))


def _at(tree: Mapping[str, Any], dotted: str) -> Any:
    return next((value for _, value in _found(tree, dotted)), None)


def _drop(tree: Tree, path: Sequence[str]) -> None:
    name, *rest = path
    if not rest:
        del tree[name]
        return
    _drop(tree[name], rest)
    if not tree[name]:
        del tree[name]  # a section whose keys have all moved


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return value
