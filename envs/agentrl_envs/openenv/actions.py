"""Actions made from turns of the model: by a template of the config, or from JSON in the turn."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn, cast

from agentrl.errors import ConfigError
from agentrl_envs.marked_text import last_between
from agentrl_envs.openenv.session import ActionRefused

_PLACEHOLDER = re.compile(r"\{(text|action)\}")
_FIELD = re.compile(r"\{(\w[\w.]*)\}")
_OF_SERVER = "metadata"
_SHOWN_CHARS = 8000
_DEPTH = 32


class Actions:
    """Reads actions out of turns.

    Example:
        >>> Actions({"message": "{action}"}).read("I say <action>hello</action>")
        {'message': 'hello'}
    """

    def __init__(self, form: Mapping[str, Any] | str) -> None:
        """Take the form of an action.

        Args:
            form: fields of the action, in which `{text}` stands for the turn and `{action}` for
                what the turn has between <action> and </action>; or `json` for a turn that is, or
                has between these marks, the action as a JSON object.

        Raises:
            ConfigError: neither of these.
        """
        self._form = form
        self._placeholders = set(_PLACEHOLDER.findall(json.dumps(form, default=str)))
        self._schema: Mapping[str, Any] = {}
        if form != "json" and not (isinstance(form, Mapping) and self._placeholders):
            raise ConfigError(
                f"OpenEnvTask: env.args.action is {form!r}, expected 'json', or the fields of an "
                "action with {text} or {action} in one of them, as in {message: '{text}'}"
            )

    def fit(self, schema: Mapping[str, Any]) -> None:
        """Take the server's schema of actions, to turn words into the types that it asks for.

        Raises:
            ConfigError: the template has not the fields that the schema wants.
        """
        self._schema = schema
        known: Mapping[str, Any] = schema.get("properties") or {}
        if isinstance(self._form, str) or not known:
            return
        strange = set(self._form) - set(known)
        missing = set(schema.get("required") or ()) - set(self._form)
        if missing or (strange and schema.get("additionalProperties") is False):
            raise ConfigError(
                f"OpenEnvTask: env.args.action has the fields {_names(self._form)}, but the server "
                f"takes {_names(name for name in known if name != _OF_SERVER)} and needs "
                f"{_names(schema.get('required') or ())}"
            )

    def words(self) -> str:
        """The description of its answers for the model; empty if any text will do."""
        if self._form == "json":
            fields: Mapping[str, Any] = self._schema.get("properties") or {}
            parts = [self._field(name, kind) for name, kind in fields.items() if name != _OF_SERVER]
            listed = f" with the fields {', '.join(parts)}" if parts else ""
            return (
                f"Answer with <action>...</action>; between stands a JSON object{listed}, and "
                "nothing else."
            )
        if "action" in self._placeholders:
            return "Answer with <action>...</action>; what stands between is done."
        return ""

    def read(self, text: str) -> dict[str, Any]:
        """The action that a turn asks for.

        Raises:
            ActionRefused: it asks for none.
        """
        marked = last_between(text, "<action>", "</action>")
        inner = None if marked is None else marked.strip()
        if self._form == "json":
            action = _json_object(text if inner is None else inner)
        else:
            if inner is None and "action" in self._placeholders:
                raise ActionRefused("there is no <action>...</action> in your answer")
            said = {"text": text.strip(), "action": inner or ""}
            form = cast("Mapping[str, Any]", self._form)
            action = {name: self._filled(name, value, said) for name, value in form.items()}
        # Each would bring down the server's session, and with it the rollout.
        if _deeper(action, _DEPTH):
            raise ActionRefused(f"it is nested more than {_DEPTH} deep")
        try:
            json.dumps(action, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError as error:
            raise ActionRefused("it holds characters that are no text") from error
        except ValueError as error:
            raise ActionRefused("it holds a number that is not finite") from error
        return action

    def _filled(self, name: str, value: Any, said: Mapping[str, str]) -> Any:
        if isinstance(value, str):
            whole = _PLACEHOLDER.fullmatch(value)
            if whole:
                return _typed(name, said[whole[1]], self._types(name))
            return _PLACEHOLDER.sub(lambda match: said[match[1]], value)
        if isinstance(value, Mapping):
            items = cast("Mapping[str, Any]", value).items()
            return {key: self._filled("", part, said) for key, part in items}
        if isinstance(value, list):
            return [self._filled("", part, said) for part in cast("list[Any]", value)]
        return value

    def _types(self, name: str) -> set[str]:
        fields: Mapping[str, Any] = self._schema.get("properties") or {}
        return _types(fields.get(name) or {}, self._schema.get("$defs") or {})

    def _field(self, name: str, kind: Mapping[str, Any]) -> str:
        types = " or ".join(sorted(self._types(name))) or "any value"
        said = str(kind.get("description") or "").strip().rstrip(".")
        needed = "" if name in (self._schema.get("required") or ()) else ", may be left out"
        return f'"{name}" ({types}{needed}{": " + said if said else ""})'


def shown(observation: Mapping[str, Any], form: str) -> str:
    """An observation as text.

    Args:
        observation: of the server.
        form: text with `{field}` or `{field.of.field}`; empty gives all fields but `metadata`,
            which is the server's own, as JSON.

    Raises:
        KeyError: a field that the observation has not; its argument is the field.
    """
    if not form:
        fields = {name: value for name, value in observation.items() if name != _OF_SERVER}
        text = json.dumps(fields, ensure_ascii=False)
    else:
        text = _FIELD.sub(lambda match: _at(observation, match[1]), form)
    if len(text) <= _SHOWN_CHARS:
        return text
    half = _SHOWN_CHARS // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def check_observation_form(form: str) -> None:
    """Refuse a form that shows nothing of the observation.

    Raises:
        ConfigError: it names no field.
    """
    if form and not _FIELD.search(form):
        raise ConfigError(
            f"OpenEnvTask: env.args.observation is {form!r} and names no field of the "
            "observation, expected text such as '{echoed_message}', or nothing for all of it"
        )


def _at(observation: Mapping[str, Any], path: str) -> str:
    value: Any = observation
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            raise KeyError(path)
        value = cast("dict[str, Any]", value)[name]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _types(kind: Mapping[str, Any], known: Mapping[str, Any]) -> set[str]:
    """JSON types that a field may have; empty if its schema names none."""
    kind = known.get(str(kind.get("$ref", "")).rpartition("/")[2]) or kind
    plain = kind.get("type")
    found = set(cast("list[str]", plain) if isinstance(plain, list) else [plain] if plain else [])
    for other in (*(kind.get("anyOf") or ()), *(kind.get("allOf") or ())):
        found |= _types(other, known)
    return found - {"null"}


def _typed(name: str, text: str, types: set[str]) -> Any:
    if not types or "string" in types:
        return text
    wanted = " or ".join(sorted(types))
    # A number is written as JSON writes it, but true and false also as people do.
    word = text.strip().lower() if types == {"boolean"} else text.strip()
    try:
        value = json.loads(word, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ActionRefused(f"{name} must be of type {wanted}") from error
    return value  # Whether it is of that type is for the server to say.


def _json_object(text: str) -> dict[str, Any]:
    start, end = text.find("{"), text.rfind("}")
    try:
        found = json.loads(text[start : end + 1], parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ActionRefused(f"it is not one JSON object ({error})") from error
    if not isinstance(found, dict) or _OF_SERVER in found:
        raise ActionRefused(f"it must be a JSON object without {_OF_SERVER!r}")
    return cast("dict[str, Any]", found)


def _deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    parts = cast("list[Any]", [*value.values()] if isinstance(value, dict) else value)
    return depth == 0 or any(_deeper(part, depth - 1) for part in parts)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _names(names: Any) -> str:
    return ", ".join(sorted(str(name) for name in names)) or "(none)"
