"""Names of the Hugging Face hub: told from folders by their looks, and asked for once.

The hub's own clients ask again for minutes where no network answers, for every file anew. Whoever
loads from the hub calls `require_on_hub` first: one request a name and process, bounded in time.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from pathlib import Path

from agentrl.config.paths import meant_as_folder
from agentrl.errors import ConfigError, choices
from agentrl.machine.hub_cache import HubKind, is_cached

logger = logging.getLogger(__name__)

_REQUEST_S = 5
"""Seconds that one connection to the hub may take."""
_ANSWER_S = 8
"""Seconds until the hub counts as not reachable; the look-up of its address has no limit of its
own."""

_SHOWN = 20
"""Most neighbours of a folder that is not there which a message names."""


def require_on_hub(
    name: str, *, key: str, kind: HubKind = "model", base: Path | None = None
) -> None:
    """Refuse a name that no repository of the hub has, or that cannot be asked for now.

    Where the hub does not answer, what its cache on this machine holds is used from here on.

    Args:
        name: `owner/name`; no folder has it.
        key: of the config that names it, for messages.
        kind: of the repository.
        base: folder that a relative path starts from; default the working directory.

    Raises:
        ConfigError: it is read as a folder, no such repository, or no network and nothing cached.
    """
    if meant_as_folder(name, base or Path.cwd()) and not is_cached(name, kind):
        raise ConfigError(f"{key} {name!r} does not exist. {_near(name, base or Path.cwd())}")
    if problem := _problem(name, kind):
        raise ConfigError(f"{key} {name!r}: {problem}")


def _near(name: str, base: Path) -> str:
    path = base / Path(name).expanduser()
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    few = 0 < len(siblings) <= _SHOWN
    near = f"In {path.parent}: {choices(path.name, siblings)}. " if few else ""
    return (
        f"{near}It is read as a folder, so the hub was not asked: a name of the hub is "
        "'owner/name' where no folder 'owner' lies. Give a folder that is there, a name of the "
        "hub, or fetch that name first"
    )


@functools.cache
def _problem(name: str, kind: HubKind) -> str | None:
    """The answer about a name, asked for once; None where it can be loaded."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        return f"no folder has this path, and it is no name of the hub: {error}"
    if constants.HF_HUB_OFFLINE:
        if is_cached(name, kind):
            return None
        return (
            "no such folder, and as a name of the hub it is not in the cache of this machine, "
            "while HF_HUB_OFFLINE forbids to ask; fetch it first, or give a folder"
        )
    status = _ask(name, kind)
    if isinstance(status, int):
        refusal = _refusal(status, constants.ENDPOINT, kind)
        if refusal is None or not is_cached(name, kind):
            return refusal
        logger.warning(
            "the hub (%s) answers %d for %s (gone, or not for you: `hf auth login`); it is taken "
            "from the cache of this machine",
            *(constants.ENDPOINT, status, name),
        )
        return None
    if not is_cached(name, kind):
        return (
            f"no such folder, and the hub ({constants.ENDPOINT}) does not answer ({status}); give "
            "a folder, or fetch the name where there is a network"
        )
    logger.warning(
        "the hub (%s) does not answer (%s): %s and whatever else comes from it is taken from the "
        "cache of this machine",
        *(constants.ENDPOINT, status, name),
    )
    _go_offline()
    return None


def _refusal(status: int, endpoint: str, kind: HubKind) -> str | None:
    if status in (401, 403, 404):
        return (
            f"no such folder, and the hub ({endpoint}) answers {status}: it has no {kind} of this "
            "name, or not for you; correct the name, or log in with `hf auth login`"
        )
    return None  # what loads it waits and asks again where the hub is busy


def _ask(name: str, kind: HubKind) -> int | str:
    """The status of the hub's answer, or why there was none."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.utils import build_hf_headers

    found: list[int | str] = []

    def ask() -> None:
        # What its own clients ask first, so that any mirror knows it.
        way = f"{name}/resolve/main/config.json" if kind == "model" else f"api/datasets/{name}"
        try:
            answer = get_session().request(
                "HEAD" if kind == "model" else "GET",
                f"{constants.ENDPOINT}/{way}",
                headers=build_hf_headers(),
                timeout=_REQUEST_S,
                follow_redirects=True,
            )
            found.append(answer.status_code)
        # Proxies, certificates and sockets below the client raise what they like: no answer.
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")

    asking = threading.Thread(target=ask, name="hub", daemon=True)
    asking.start()
    asking.join(_ANSWER_S)
    return found[0] if found else f"nothing within {_ANSWER_S} s"


def _go_offline() -> None:
    """Keep every client in this process, and in those that it starts, from asking in vain."""
    import sys

    from huggingface_hub import constants

    os.environ["HF_HUB_OFFLINE"] = "1"
    constants.HF_HUB_OFFLINE = True
    if (datasets := sys.modules.get("datasets")) is not None:
        datasets.config.HF_HUB_OFFLINE = True
