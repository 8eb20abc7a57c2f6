"""The resolved `config.yaml` of a run of any version, in the keys of today.

So that a run or a fit that an older version began resumes, opens and replays.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.config.base import Section
from agentrl.config.fleet import WIDTHS
from agentrl.config.keys import (
    Tree,
    copy_of,
    drop,
    found_at,
    inner_kinds,
    is_table,
    keep_kind,
    kind_of,
    put,
    value_at,
)
from agentrl.config.presets import PRESETS, brought_along
from agentrl.config.renamed import NOTHING, RENAMED, kl_target, new_path
from agentrl.config.schema import RolloutSection, RunConfig

logger = logging.getLogger(__name__)


def translate(data: Mapping[str, Any], root: type[Section] = RunConfig) -> Tree:
    """The keys of today from those of a resolved config that any version wrote.

    Keys that no kind in the file reads are left out, as are those of a section that was not asked
    for. What is no key of any version stays, for the reader to complain about.
    """
    tree = copy_of(data)
    _split_serving(tree)
    _without_rank_0(tree)
    _clip_before_normalize(tree)
    _kl_by_target(tree)
    found = [
        (renamed, path, value) for renamed in RENAMED for path, value in found_at(tree, renamed.old)
    ]
    moved = [(renamed, path, renamed.value(value, tree)) for renamed, path, value in found]
    for name, sentence in lost_settings(tree):
        logger.warning("%s %s", name, sentence)
    for _, path, _ in found:
        drop(tree, path)
    for renamed, path, value in moved:
        if renamed.new and value is not NOTHING:
            put(tree, new_path(renamed, path), value)
    _overlong_of_sampled(tree)
    _loss_as_preset(tree)
    return _pruned(tree, root, incomplete=bool(found))


def lost_settings(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The removed keys of a stored config whose values cannot be had any more, with a sentence.

    Example:
        >>> list(lost_settings({"algorithm": {"std_eps": 0.5}}))[0][0]
        'algorithm.std_eps'
    """
    for renamed in RENAMED:
        for path, value in found_at(data, renamed.old):
            if not renamed.new and value not in renamed.defaults:
                yield ".".join(path), f"was {value} and has no effect now: {renamed.reason}"


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


def _kl_by_target(tree: Tree) -> None:
    """A word once chose how the KL weight is moved; now the form of `algorithm.kl_target` does."""
    algorithm = tree.get("algorithm")
    if not isinstance(algorithm, dict) or "kl_controller" not in algorithm:
        return
    target = kl_target(algorithm["kl_controller"], tree)
    controller = algorithm.pop("kl_controller")
    if isinstance(controller, dict) and "horizon" in controller:
        algorithm["kl_horizon"] = controller["horizon"]
    if isinstance(target, list | tuple) or target is NOTHING:
        algorithm.pop("kl_horizon", None)
    algorithm["kl_target"] = None if target is NOTHING else target


def _overlong_of_sampled(tree: Tree) -> None:
    """The overlong penalty once counted sampled tokens against `rollout.max_response_tokens`."""
    overlong = value_at(tree, "reward.overlong")
    if not isinstance(overlong, dict) or "max_sampled_tokens" in overlong:
        return
    if overlong.get("buffer_len") is not None:
        budget = value_at(tree, "rollout.max_response_tokens")
        default = RolloutSection.model_fields["max_response_tokens"].default
        overlong["max_sampled_tokens"] = budget or default


def _loss_as_preset(tree: Tree) -> None:
    """A policy loss once took the bounds and the mean of whatever preset it stood beside.

    Today what it brings along is stored, so a key without a value is one of then.
    """
    algorithm = tree.get("algorithm")
    if not isinstance(algorithm, dict):
        return
    preset = algorithm.get("preset") or "dr_grpo"
    for brought in brought_along(preset, algorithm).values():
        for key in brought.keys() - {"old_log_probs"}:
            if algorithm.get(key) is None:
                algorithm[key] = PRESETS[preset][key]


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
