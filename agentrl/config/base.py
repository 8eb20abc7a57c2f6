"""The base of all sections of a run file, and sections of several kinds."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema


class Section(BaseModel):
    """Base of all sections: frozen, strict about names, documented per field."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True
    )
    bare: ClassVar[str] = ""
    """The key that a plain value in place of the section stands for, if the section has one."""

    @model_validator(mode="before")
    @classmethod
    def _from_plain_value(cls, value: Any) -> Any:
        if not cls.bare or isinstance(value, Mapping | BaseModel):
            return value
        return {cls.bare: value}


def given_keys(section: Any) -> dict[str, Any]:
    """The keys that are set in a section of a file, or in one made in Python; else empty."""
    if isinstance(section, BaseModel):
        return {name: getattr(section, name) for name in section.model_fields_set}
    return dict(section) if isinstance(section, Mapping) else {}


class Names(Enum):
    """Kinds of text in a key; an annotation of its field, read by `agentrl.config.paths`."""

    FOLDER = "a file or folder"
    OWN_FOLDER = "a folder, which older versions looked for in the current one"
    MODEL = "a checkpoint folder or a name of the hub"
    REFERENCE = "`model`, `none`, or as MODEL"
    CODE = "an import string, or a name of ours"
    SOURCE = "rows: a file, a folder, `run:FOLDER`, `hf:NAME` or an import string"
    PAIRS = "`none`, or as SOURCE"
    RATES = "pass rates: `profile`, `column:NAME`, or a file or folder"


class FiniteSection(Section):
    """A section whose numbers go into losses and updates: none may be infinite or NaN.

    Waits and capacities, as in other sections, may be infinite.
    """

    model_config = ConfigDict(allow_inf_nan=False)


class KindSection(Section):
    """One kind of a section that has several; the key named in `bare` selects the kind."""

    bare: ClassVar[str] = "kind"

    @classmethod
    def kinds(cls) -> tuple[str, ...]:
        """Values of the key that mean this class; empty if any text may."""
        annotation = cls.model_fields[cls.bare].annotation
        return get_args(annotation) if get_origin(annotation) is Literal else ()

    @classmethod
    def is_kind(cls, name: Any) -> bool:
        """True if a section whose key has this value is of this class."""
        return name in cls.kinds()


class OneOf:
    """Annotation of a union of kinds: the key that names the kind decides, before anything else.

    A section that does not name its kind is of the first one.

    Example:
        >>> from typing import Annotated
        >>> class Circle(KindSection):
        ...     kind: Literal["circle"] = "circle"
        ...     radius: float = 1.0
        >>> class Point(KindSection):
        ...     kind: Literal["point"] = "point"
        >>> class Drawing(Section):
        ...     shape: Annotated[Circle | Point, OneOf(Circle, Point)] = Circle()
        >>> Drawing.model_validate({"shape": "point"}).shape
        Point(kind='point')
        >>> Drawing.model_validate({"shape": {"radius": 2}}).shape
        Circle(kind='circle', radius=2.0)
    """

    def __init__(self, *kinds: type[KindSection]) -> None:
        self._kinds = {kind.__name__: kind for kind in kinds}

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.tagged_union_schema(
            choices={name: handler.generate_schema(kind) for name, kind in self._kinds.items()},
            discriminator=self._name_of,
        )

    def _name_of(self, value: Any) -> str:
        if isinstance(value, BaseModel):
            return type(value).__name__
        first = next(iter(self._kinds.values()))
        if isinstance(value, Mapping):
            value = value.get(first.bare, first.model_fields[first.bare].default)
        found = (name for name, kind in self._kinds.items() if kind.is_kind(value))
        return next(found, str(value))


def is_count(value: Any) -> bool:
    """True for a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_named_count(value: Any) -> bool:
    """True for a mapping of one name to such a number.

    Example:
        >>> is_named_count({"mask": 2}), is_named_count({"mask": -1}), is_named_count({})
        (True, False, False)
    """
    return isinstance(value, Mapping) and len(value) == 1 and is_count(*value.values())
