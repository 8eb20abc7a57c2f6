"""Schemas of the arguments of MCP tools, in the draft that they name, and checked in linear time.

Nothing is fetched: a schema that refers to another document is refused, since what a rollout may
do must not depend on what a server elsewhere says today.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def schema_validator(schema: Mapping[str, Any]) -> Any:
    """A `jsonschema` validator of arguments.

    Args:
        schema: of an object; without `$schema` it is of draft 2020-12.

    Raises:
        ValueError: it is no schema of an object, or refers to what is not in it; the text goes on
            after "the tool has".
    """
    # Both come with the SDK.
    from jsonschema import Draft202012Validator, validators
    from jsonschema_specifications import REGISTRY

    if schema.get("type") != "object":
        raise ValueError(
            f"a schema of type {schema.get('type')!r} for its arguments, expected 'object'"
        )
    if not isinstance(schema.get("$schema", ""), str):
        raise ValueError("a schema that is none: its $schema is no text")
    base = validators.validator_for(schema, default=Draft202012Validator)
    _require_schema(base, dict(schema))
    _require_references(schema, base, REGISTRY)
    validator = _linear_validator(base)(schema, registry=REGISTRY)
    try:
        next(iter(validator.iter_errors({})), None)
    except RecursionError:
        raise ValueError("a schema that refers to itself without end") from None
    return validator


def _require_schema(base: Any, schema: Any, where: str = "") -> None:
    """Refuse what is no schema of a draft; formats, as of patterns, are not Python's to judge."""
    from jsonschema import FormatChecker, SchemaError

    try:
        base.check_schema(schema, format_checker=FormatChecker(()))
    except SchemaError as error:
        place = f"{where}{error.json_path}"
        raise ValueError(f"a schema that is none: {error.message[:400]} at {place}") from None
    except RecursionError:
        raise ValueError("a schema that is nested too deep") from None


def _require_references(schema: Mapping[str, Any], base: Any, registry: Any) -> None:
    """Refuse references that lead out of the schema, or nowhere."""
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    specification = specification_with(base.META_SCHEMA["$schema"])
    root = specification.create_resource(schema)
    left, seen = [(root, registry.resolver_with_root(root))], {id(schema)}
    while left:
        resource, resolver = left.pop()
        part = resource.contents
        found = [(inner, resolver.in_subresource(inner)) for inner in resource.subresources()]
        reference = part.get("$ref", part.get("$dynamicRef")) if isinstance(part, dict) else None
        if isinstance(reference, str):
            try:
                target = resolver.lookup(reference)
            except (Unresolvable, ValueError):  # the latter for a word as the place in a list
                raise ValueError(
                    f"a schema that refers to {reference[:200]!r}, which is not in it, and nothing "
                    "is fetched"
                ) from None
            if id(target.contents) not in seen:
                _require_schema(base, target.contents, f"what {reference[:200]!r} names, ")
            # What it stands in may be no place of schemas, as `definitions` of later drafts.
            found.append((specification.create_resource(target.contents), target.resolver))
        for inner, where in found:
            if id(inner.contents) not in seen:
                seen.add(id(inner.contents))
                left.append((inner, where))


def _linear_validator(base: Any) -> Any:
    """A validator without the checks that take longer than what they check is long.

    A pattern of the schema may backtrack on what a model wrote, and Python's patterns cannot be
    interrupted; items that must differ are compared pair by pair. The server checks them itself.
    """
    from jsonschema import validators

    def known_properties(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        if "patternProperties" not in schema:
            yield from base.VALIDATORS["additionalProperties"](validator, value, instance, schema)

    def nothing(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        return ()

    left_out = ("pattern", "patternProperties", "uniqueItems", "unevaluatedProperties")
    return validators.extend(
        base, {**dict.fromkeys(left_out, nothing), "additionalProperties": known_properties}
    )
