"""Settings of one served model, as a run file gives them to a judge or an environment."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args
from urllib.parse import urlsplit

from agentrl.errors import ConfigError, choices
from agentrl.served.formats import Api


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSettings:
    """A model behind a server, and the bounds within which it is asked.

    Example:
        >>> ServedSettings(url="http://localhost:8000/v1", model="policy").api
        'openai'
    """

    url: str
    """Of the server, as `http://localhost:8000/v1` or `https://api.anthropic.com/v1`."""
    model: str
    """Its name there; a server of `agentrl serve` calls its model `policy`."""
    api: Api = "openai"
    """Wire format: `openai` for chat completions, `anthropic` for messages."""
    api_key_env: str = ""
    """Environment variable that holds the key; empty for a server without keys. The key itself is
    read at each request and never stored."""
    temperature: float = 0.0
    """Of sampling."""
    max_tokens: int = 1024
    """Most tokens of an answer; 0 leaves it to the server, which `anthropic` does not allow."""
    seed: int = 0
    """Of sampling, where the wire format has one."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More keys of the request, as `chat_template_kwargs`; null removes one that is sent."""
    json_schema: bool = True
    """Ask the server to hold structured answers to their schema; without it, and with servers that
    refuse that, the answer is searched for the object."""
    timeout_s: float = 50.0
    """Seconds for one answer, all attempts and the waits between them included; the wait for a
    place among `max_in_flight` comes before. Keep it below `rollout.env_timeout_s`."""
    attempt_s: float = 0.0
    """Seconds for one attempt; 0 is all of `timeout_s`, with which a request that hangs is not
    tried again."""
    tries: int = 4
    """Most attempts for an answer."""
    max_in_flight: int = 16
    """Most requests at once to this server, of all models that this process asks there."""
    cache: str = ""
    """Folder for answers; the same request is then asked once. Empty asks every time."""
    version: str = ""
    """Tells models of one name and address apart in the cache, as the step of a policy."""
    price_in: float = 0.0
    """Price of a million tokens read, in a currency of your choice."""
    price_out: float = 0.0
    """Price of a million tokens written."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"url is {self.url!r}, expected http://HOST:PORT/v1 or https://...")
        if parts.username or parts.password:
            raise ConfigError("url holds a name or a password; put the key in api_key_env instead")
        if not self.model:
            raise ConfigError("model is empty, expected the name of a model of the server")
        if self.api not in get_args(Api):
            raise ConfigError(f"api: {choices(str(self.api), get_args(Api))}")
        if self.api == "anthropic" and self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}; anthropic needs 1 or more")
        least = {
            "temperature": 0.0, "max_tokens": 0, "timeout_s": 1e-3, "attempt_s": 0.0, "tries": 1,
            "max_in_flight": 1, "price_in": 0.0, "price_out": 0.0,
        }  # fmt: skip
        for name, bound in least.items():
            value = getattr(self, name)
            if not math.isfinite(value) or value < bound:
                raise ConfigError(f"{name} is {value!r}, expected a number of at least {bound:g}")

    def require_key(self) -> None:
        """Check that the variable with the key is set.

        Raises:
            ConfigError: it is not, or is empty.
        """
        if self.api_key_env and not self.key():
            raise ConfigError(
                f"api_key_env: the environment variable {self.api_key_env!r} is not set; export "
                "it, or leave the setting empty for a server without keys"
            )

    def key(self) -> str:
        """The key, from the environment of this moment; empty for a server without keys."""
        return os.environ.get(self.api_key_env, "").strip() if self.api_key_env else ""


_KINDS: Mapping[str, tuple[type, ...]] = {
    "str": (str,), "Api": (str,), "int": (int,), "float": (int, float), "bool": (bool,),
    "Mapping[str, Any]": (Mapping,),
}  # fmt: skip


def read_settings(values: Any, where: str, **defaults: Any) -> ServedSettings:
    """The settings in a run file.

    Args:
        values: a mapping with the fields of `ServedSettings`.
        where: key of the run file that holds them, for messages.
        defaults: other defaults than those of `ServedSettings`.

    Raises:
        ConfigError: a key that does not exist or is missing, or a value of the wrong kind.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: got {values!r}, expected a mapping with url and model")
    known = {item.name: str(item.type) for item in fields(ServedSettings)}
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"{where}: {choices(str(name), known)}")
        kinds = _KINDS[known[name]]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ConfigError(f"{where}.{name}: got {value!r}, expected {known[name]}")
    for name in ("url", "model"):
        if name not in values:
            raise ConfigError(f"{where}: {name} is missing; give url and model of the server")
    try:
        return ServedSettings(**{**defaults, **values})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
