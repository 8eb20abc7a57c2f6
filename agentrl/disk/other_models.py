"""Models beside the policy: where they lie, and whether they read the tokens that it samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentrl.config.reward import RewardModelSection
from agentrl.disk.checkpoint import resolve_model_path
from agentrl.errors import ConfigError

MEMBERS = "members"
"""Folder of the members in the run directory of an ensemble of reward models."""


def other_model_source(path: str, base: Path) -> str:
    """The checkpoint folder or hub name of a model beside the policy; a run stands for its latest
    checkpoint.

    Args:
        path: as in the config.
        base: folder that relative paths start from; what is no folder there is looked for in the
            working directory, as a path of the command line is meant.

    Raises:
        RunError: a run directory without a complete checkpoint.
    """
    folder = base / Path(path).expanduser()
    return resolve_model_path(str(folder) if folder.is_dir() else path)


def reward_model_sources(item: RewardModelSection, base: Path) -> dict[str, str]:
    """Checkpoint folders and hub names of a reward model of a run, by their names for messages.

    The run of a fit with `objective.ensemble_mode: members` stands for all of its members.

    Args:
        item: names them.
        base: folder that relative paths start from.

    Raises:
        RunError: a run directory without a complete checkpoint.
        ConfigError: one model twice.
    """
    found: dict[str, str] = {}
    for path in item.path:
        members = member_runs(base / Path(path).expanduser())
        for each in [str(Path(path) / MEMBERS / member.name) for member in members] or [path]:
            source = other_model_source(each, base)
            if source in found.values():
                raise ConfigError(
                    f"path names the model {source} twice: {', '.join(item.path)}; leave one out"
                )
            found[each] = source
    return found


def member_runs(run: Path) -> list[Path]:
    """Run directories of the members of an ensemble, in their order; none where it is none."""
    folder = run / MEMBERS
    found = [path for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
    return sorted(found, key=lambda path: int(path.name))


def check_same_vocabulary(ours: Mapping[str, int], theirs: Mapping[str, int], who: str) -> None:
    """Refuse a model for which a token of the policy is another one; it may have more.

    Args:
        ours: token to id, of the policy.
        theirs: of the other model.
        who: names it and its role at the beginning of the message.

    Raises:
        ConfigError: names a token, its id for the policy, and what the other model has there.
    """
    for token, number in ours.items():
        if theirs.get(token) != number:
            got = f"id {theirs[token]}" if token in theirs else "no id"
            raise ConfigError(
                f"{who} has another vocabulary than the policy: token {token!a} is id {number} for "
                f"the policy and {got} there, so it would read other text than was sampled; take "
                "one of the policy's tokenizer"
            )


def check_read_ids(ours: Mapping[str, int], vocabulary: int, who: str) -> None:
    """Refuse a model without an embedding for a token of the policy's tokenizer.

    Args:
        ours: token to id, of the policy.
        vocabulary: number of ids that the other model reads.
        who: names it and its role at the beginning of the message.

    Raises:
        ConfigError: names a token that it cannot read.
    """
    last = max(ours, key=lambda token: ours[token])
    if ours[last] >= vocabulary:
        raise ConfigError(
            f"{who} reads {vocabulary} token ids (vocab_size in its config.json), but token "
            f"{last!a} is id {ours[last]} for the policy; take one that was trained with all of "
            "the policy's tokens"
        )
