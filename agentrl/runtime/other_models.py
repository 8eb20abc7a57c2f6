"""Models beside the policy: where they lie, and whether they read the tokens that it samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.runtime.disk.checkpoint import resolve_model_path


def other_model_source(path: str, base: Path) -> str:
    """The checkpoint folder or hub name of a model beside the policy; a run stands for its latest
    checkpoint.

    Args:
        path: as in the config.
        base: folder that relative paths start from.

    Raises:
        RunError: a run directory without a complete checkpoint.
    """
    folder = base / Path(path).expanduser()
    return resolve_model_path(str(folder)) if folder.is_dir() else path


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
