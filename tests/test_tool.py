"""Any documented function is a tool: what the model is told, what it may pass, what is refused."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Literal, Optional

import pytest
from pydantic import BaseModel, Field

from agentrl.errors import ConfigError, ToolError
from agentrl.plugins.docstrings import parts_of_docstring
from agentrl.tool import FunctionTool


class Unit(enum.Enum):
    KELVIN = "K"
    CELSIUS = "C"


@dataclass
class Place:
    """Where."""

    name: str
    title: str = "city"


class Tree(BaseModel):
    label: str
    children: list[Tree] = []


def weather(
    place: Place,
    unit: Unit = Unit.CELSIUS,
    kind: Literal["now", "later"] = "now",
    days: Annotated[int, Field(ge=1, le=7)] = 1,
    note: Optional[str] = None,  # noqa: UP045 - as many people write it
    json: dict[str, int] = {},  # noqa: B006 - as many people write it
    _private: bool = False,
) -> dict:
    """Say the weather.

    It may be wrong.

    Args:
        place: where; a city
            or: a village
        unit (Unit): of the temperature
        note:
            for yourself

    Returns:
        numbers: not for the model
    """
    return {"place": place.name, "unit": unit.value, "days": days, "note": note, "json": json}


def test_what_the_model_is_told():
    tool = FunctionTool(weather)
    assert tool.description == "Say the weather.\n\nIt may be wrong."
    assert tool.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["place"],
        "properties": {
            "place": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "name": {"type": "string"},
                    "title": {"type": "string", "default": "city"},
                },
                "required": ["name"],
                "description": "where; a city or: a village",
            },
            "unit": {
                "type": "string",
                "enum": ["K", "C"],
                "default": "C",
                "description": "of the temperature",
            },
            "kind": {"type": "string", "enum": ["now", "later"], "default": "now"},
            "days": {"type": "integer", "minimum": 1, "maximum": 7, "default": 1},
            "note": {"type": "string", "description": "for yourself"},
            "json": {"type": "object", "additionalProperties": {"type": "integer"}, "default": {}},
            "_private": {"type": "boolean", "default": False},
        },
    }


async def test_arguments_become_what_the_function_expects():
    tool = FunctionTool(weather)
    arguments = tool.validate({"place": {"name": "Bern"}, "unit": "K", "note": None})
    assert arguments["place"] == Place("Bern")
    assert arguments["unit"] is Unit.KELVIN
    result = await tool.call(arguments, None)
    assert result.text == '{"place":"Bern","unit":"K","days":1,"note":null,"json":{}}'
    # A default that can change must not carry over to the next call.
    arguments["json"]["a"] = 1
    assert tool.validate({"place": {"name": "Bern"}})["json"] == {}


def test_lists_and_objects_may_come_as_their_json():
    def show(lines: list[int] | None = None, where: Place | None = None, note: str = "") -> str:
        """Show."""
        return ""

    tool = FunctionTool(show)
    given = {"lines": "[1, 50]", "where": '{"name": "Bern"}', "note": "[1]"}
    assert tool.validate(given) == {"lines": [1, 50], "where": Place("Bern"), "note": "[1]"}
    for wrong in ("1, 50", "5", "[1", '{"a": 1}', "[" * 9000):
        with pytest.raises(ToolError, match="lines: Input should be a valid list"):
            tool.validate({"lines": wrong})
    with pytest.raises(ToolError, match="lines: Input should be a valid list"):
        tool.validate({"lines": '["x"]', "note": "a"})
    for inside in (["[1, 2]", "[3]"], ["x", "[3]"]):  # fails if the list becomes its last text
        with pytest.raises(ToolError, match=r"lines\.0: Input should be a valid integer"):
            tool.validate({"lines": inside})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "place: Field required"),
        ({"place": {"nam": "x"}}, "place.name: Field required"),
        ({"place": {"name": "x"}, "unit": "F"}, "unit: Input should be 'K' or 'C'"),
        ({"place": {"name": "x"}, "days": 8}, "days: Input should be less than or equal to 7"),
        ({"place": {"name": "x"}, "json": {"a": "b"}}, "json.a: Input should be a valid integer"),
        ({"place": {"name": "x"}, "p0": 1}, "p0: Extra inputs are not permitted"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments, message):
    with pytest.raises(ToolError) as caught:
        FunctionTool(weather).validate(arguments)
    assert message in str(caught.value)
    assert str(caught.value).startswith("Invalid arguments for weather: ")


def test_a_type_that_holds_itself():
    def plant(tree: Tree) -> str:
        """Plant it."""
        return tree.label

    schema = FunctionTool(plant).parameters
    assert schema["properties"]["tree"]["properties"]["children"]["items"] == {
        "$ref": "#/$defs/Tree"
    }
    assert list(schema["$defs"]) == ["Tree"]


def test_methods_are_tools():
    class Box:
        def open(self, key: int) -> int:
            """Open it."""
            return key

    tool = FunctionTool(Box().open, name="open_box")
    assert tool.name == "open_box"
    assert list(tool.parameters["properties"]) == ["key"]


def no_docstring(x: int) -> None: ...


def lines_of(x: str):
    """Give its lines."""
    yield from x.splitlines()


async def pages_of(x: str):
    """Give its pages."""
    yield x


def _made(source: str):
    scope: dict = {}
    exec(f"def bad({source}):\n  'Doc.'", scope)
    return scope["bad"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_docstring, "tool 'no_docstring' has no docstring"),
        (_made("x"), "tool 'bad': parameter 'x' has no type"),
        (lines_of, "tool 'lines_of' yields, and the model is given one result; return it"),
        (pages_of, "tool 'pages_of' yields"),
        (_made("*x: int"), "parameter 'x' takes any number of values"),
        (_made("x: int, /"), "parameter 'x' is positional-only"),
        (_made("x: type"), "parameter 'x' of type type has no JSON schema"),
        (_made("x: 'Missing'"), "the types of its parameters cannot be read: name 'Missing'"),
        (_made("y: int, x: object = object()"), "parameter 'x' of type object has no JSON schema"),
    ],
)
def test_a_function_without_a_schema_is_refused(function, message):
    with pytest.raises(ConfigError) as caught:
        FunctionTool(function)
    assert message in str(caught.value)


GOOGLE = """Add.

Parameters:
    a (int): the first
        one
    b: the second

Returns:
    c: no
"""
NUMPY = """Add.

Parameters
----------
a : int
    the first
    one
b
    the second

Returns
-------
c : int
    no
"""
SPHINX = """Add.

:param int a: the first
    one
:parameter b: the second
:type b: int
:returns: no
"""


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX])
def test_docstrings_of_each_style_describe_the_parameters(doc: str) -> None:
    def add(a: int, b: int) -> str:
        return ""

    add.__doc__ = doc
    tool = FunctionTool(add)
    assert tool.description == "Add."
    described = {name: of["description"] for name, of in tool.parameters["properties"].items()}
    assert described == {"a": "the first one", "b": "the second"}


def test_several_names_of_numpy_style_share_their_words():
    text = "Do.\n\nParameters\n----------\na, *b : int, optional\n    both\n\n    of them\n"
    assert parts_of_docstring(text) == ("Do.", {"a": "both of them", "b": "both of them"})
    assert parts_of_docstring(":returns: a") == ("", {})
    assert parts_of_docstring("Arguments: none") == ("Arguments: none", {})
