"""The world of one tau2 task, in a process of its own. Loaded by path, not imported.

The tools, data models and databases are tau2's, as `inspect_evals` carries them. Their modules
want `inspect_ai` for four small names; that package is large and brings a run loop of its own, so
here stand-ins take its place. They would not do in the process of the trainer.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import importlib.util
import inspect
import itertools
import json
import re
import sys
import tomllib
import types
from collections.abc import Callable, Collection, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from agentrl.errors import ConfigError, ToolError
from agentrl.tool import FunctionTool

_TOOLS = {
    "retail": {"retail.tools": "all_retail_tools"},
    "airline": {"airline.tools": "all_airline_tools"},
    "telecom": {
        "telecom.tools": "all_telecom_agent_tools",
        "telecom.user_tools": "all_telecom_user_tools",
    },
}
_STATES = {
    "retail": ("retail.RetailAgentTools", "RetailAgentTools", "RetailTools"),
    "airline": ("airline.AirlineAgentTools", "AirlineAgentTools", "AirlineTools"),
}
_WITHOUT_EFFECT = ("calculate", "transfer_to_human_agents")
_MOST_CHARS = 200_000
_NUMBER = re.compile(
    r"(?=\d)(?:(?<=\bUSD)|(?<![^\W_])(?<![^\W_]_)(?<![^\W_]__)(?<!\.))"
    r"(?:\d{1,3}(?:,\d{3})++(?!\d)|\d++)(?:\.\d++)?+(?!\w{0,9}\d|\.\d)",
    re.IGNORECASE,
)
"""`5GB`, `USD54.04` and `_54.04_` are numbers; `#W12`, `user_12` and `4WQ150` are names."""
_ITEM = re.compile(r"^[ \t]*+(\d{1,3})[.)][ \t]", re.MULTILINE)
MOST_NUMBERS = 100
"""Different numbers in a message that gives an answer; one with more is a list, and gives none."""
MOST_GUESSED = 20
"""Different numbers an agent may write, in all its messages, that are in nothing that it read: sums
and counts, not a list of all there are. No task asks for more than seven answers."""


class _Refused(Exception):
    """Stands in for `inspect_ai.tool.ToolError`: a tool refuses."""


class _StoreModel(BaseModel):
    """Stands in for `inspect_ai.util.StoreModel`: state that is found by class and name."""

    model_config = ConfigDict(arbitrary_types_allowed=True)


_STORE: dict[tuple[type, str], Any] = {}


def _store_as(kind: Any, instance: str = "") -> Any:
    if (kind, instance) not in _STORE:
        _STORE[kind, instance] = kind()
    return _STORE[kind, instance]


def _read(path: Any) -> Any:
    """A data file, without the temporary copy that tau2's own reader leaves behind."""
    raw = Path(path).read_bytes()
    text = (gzip.decompress(raw) if str(path).endswith(".gz") else raw).decode()
    return tomllib.loads(text) if str(path).endswith(".toml") else json.loads(text)


def _prepare() -> Callable[[str], Any]:
    """An importer of tau2's modules that skips what their packages import on the way."""
    found = importlib.util.find_spec("inspect_evals")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("inspect_evals is not installed")
    root = Path(found.submodule_search_locations[0])
    for name in ("", ".tau2", ".tau2.common", ".tau2.environment", *(f".tau2.{d}" for d in _TOOLS)):
        package = types.ModuleType(f"inspect_evals{name}")
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[package.__name__] = package
    nothing = type("Nothing", (), {})
    stand_ins: dict[str, dict[str, Any]] = {
        "inspect_ai": {},
        "inspect_ai.model": {"Content": nothing, "ContentText": nothing},
        "inspect_ai.tool": {"Tool": nothing, "ToolError": _Refused, "tool": lambda made: made},
        "inspect_ai.util": {"StoreModel": _StoreModel, "store_as": _store_as},
        "toml": {"load": lambda file: tomllib.loads(file.read())},
    }
    for name, values in stand_ins.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(values)
    database: Any = importlib.import_module("inspect_evals.tau2.environment.db")
    database.load_file = _read
    return lambda name: importlib.import_module(f"inspect_evals.tau2.{name}")


class Tau2Host:
    """Tools over one world, and what the world should be like in the end.

    Args:
        domain: `retail`, `airline` or `telecom`.
        begin: calls that set the scene, as tau2 writes them.
        expected: the actions of a correct solution.
        checks: questions about the end, as tau2 writes them.
        answers: that the user must get.
    """

    OPERATIONS = ("tools", "call", "verdict")

    def __init__(
        self,
        domain: str,
        begin: list[dict[str, Any]],
        expected: list[dict[str, Any]],
        checks: list[dict[str, Any]],
        answers: list[str],
    ) -> None:
        load = _prepare()
        self._same: Callable[[Any, Any], bool] = load("utils").deep_equal_unordered
        self._expected, self._checks, self._answers = expected, checks, answers
        self._tools: dict[str, FunctionTool] = {}
        for module, listed in _TOOLS[domain].items():
            for make in getattr(load(module), listed):
                self._tools[make.__name__] = _tool(make)
        self._environment: Any = None
        self._state: Any = None
        if domain == "telecom":
            self._environment = load("telecom.environment").get_environment
            world = self._environment()
            for action in begin:
                getattr(self._side(world, action), action["func_name"])(**action["arguments"])
                world.sync_tools()
        else:
            module, kind, instance = _STATES[domain]
            self._state = _store_as(getattr(load(module), kind), instance)
            self._state.initialize()
        self._calls: list[tuple[str, dict[str, Any]]] = []
        self._read: set[Decimal] = set()
        self._wrote: set[Decimal] = set()

    def _side(self, world: Any, item: dict[str, Any]) -> Any:
        return world.user_tools if item["env_type"] == "user" else world.tools

    def _hash_when_right(self) -> str:
        """Of the database after the expected actions, on a second set of tools."""
        right = type(self._state)()
        right.initialize()
        for action in self._expected:
            if action["name"] not in _WITHOUT_EFFECT:
                with contextlib.suppress(_Refused):
                    getattr(right, action["name"])(**action["arguments"])
        return str(right.db.get_hash())

    def tools(self) -> list[dict[str, Any]]:
        """Name, description and JSON schema of every tool."""
        return [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in self._tools.values()
        ]

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """One call of the model: how it went (`ok`, `error` or `invalid`) and its text."""
        tool = self._tools[name]
        try:
            values = tool.validate(arguments)
        except ToolError as error:
            return {"status": "invalid", "text": str(error)}
        self._calls.append((name, arguments))
        self._wrote |= numbers_in(json.dumps(arguments)) - self._read
        try:
            text = _finished(tool.call(values, None)).text
        except _Refused as error:
            return {"status": "error", "text": f"Error: {error}"}
        except Exception as error:
            # tau2's own runner shows whatever its tools raise over strange arguments, too.
            return {"status": "error", "text": f"Error: {type(error).__name__}: {error}"}
        text = text[:_MOST_CHARS]
        # A tool that repeats its arguments must not make a guess a number that was read.
        self._read |= numbers_in(text) - self._wrote
        return {"status": "ok", "text": text}

    def verdict(self, said: list[str], shown: list[str], right_hash: str) -> dict[str, Any]:
        """Results of the checks that tau2 makes in the end.

        Args:
            said: the messages the user received.
            shown: the messages the user wrote, each before the one of `said` at its place.
            right_hash: of the database as it should be, from an earlier verdict on this task;
                empty to work it out, which takes longer than all else here.

        Returns:
            `parts` by the names tau2 gives to the parts of the reward, and `right_hash`.
        """
        parts = {
            "ACTION": all(map(self._was_done, self._expected)),
            "COMMUNICATE": answered(self._answers, said, self._read | first_said(shown, said)),
        }
        if self._environment is None:
            right_hash = right_hash or self._hash_when_right()
            parts["DB"] = self._state.db.get_hash() == right_hash
        else:
            parts["ENV_ASSERTION"] = self._holds()
        return {"parts": parts, "right_hash": right_hash}

    def _holds(self) -> bool:
        # Making it also carries over what a call on one side means for the other.
        world = self._environment()
        return all(
            getattr(self._side(world, check), check["func_name"])(**check["arguments"])
            == check["assert_value"]
            for check in self._checks
        )

    def _was_done(self, action: dict[str, Any]) -> bool:
        compared = action.get("compare_args")
        for name, given in self._calls:
            if name != action["name"]:
                continue
            wanted = action["arguments"]
            if name == "transfer_to_human_agents" or compared == []:
                return True
            if compared is not None:
                given = {key: given.get(key) for key in compared}
                wanted = {key: wanted.get(key) for key in compared}
            if self._same(given, wanted):
                return True
        return False


def numbers_in(text: str) -> set[Decimal]:
    """The numbers that stand alone in a text, by value.

    Example:
        >>> sorted(numbers_in("$1,628.50 for #W12, 3 of 4.")) == [3, 4, Decimal("1628.5")]
        True
    """
    return {Decimal(found.replace(",", "")) for found in _NUMBER.findall(text)}


def first_said(shown: Sequence[str], said: Sequence[str]) -> set[Decimal]:
    """Numbers that the user wrote before the agent did.

    Args:
        shown: the messages the user wrote.
        said: the messages of the agent; the first follows the first of `shown`.
    """
    found: set[Decimal] = set()
    own: set[Decimal] = set()
    for request, answer in itertools.zip_longest(shown, said, fillvalue=""):
        found |= numbers_in(request) - own
        own |= numbers_in(answer) - found
    return found


def answered(wanted: Sequence[str], said: Sequence[str], read: Collection[Decimal]) -> bool:
    """True if every answer was given to the user, and not by listing all there could be.

    tau2 looks for each answer anywhere in the text, also inside a longer number. Here a number
    counts by its value, anything else as whole words, and the numbers 1., 2., 3. ... before the
    lines of a list are no part of a text. Two bounds separate an answer from a list:

    - Numbers that the agent never read are guesses. With more than `MOST_GUESSED` of them, over all
      messages, it has given no number: so a list of all numbers of four digits earns nothing,
      however it is divided. What a tool or the user only repeats after the agent was not read.
    - Numbers that it read are no guesses, and an honest agent says many: each offered flight has
      three prices. They are bounded in the message that gives the answer, to `MOST_NUMBERS` in all;
      a longer list gives none, and takes nothing from another message.

    Args:
        wanted: the answers, as tau2 writes them.
        said: the messages the user received.
        read: numbers in what the agent read.
    """
    texts = [_without_item_numbers(message.lower()) for message in said]
    numbers = [numbers_in(text) for text in texts]
    guessed = len(set().union(*numbers).difference(read)) > MOST_GUESSED

    def given(item: str, text: str, among: Collection[Decimal]) -> bool:
        if any(map(str.isdigit, item)) and (guessed or len(among) > MOST_NUMBERS):
            return False
        if _NUMBER.fullmatch(item):
            return Decimal(item.replace(",", "")) in among
        return re.search(rf"(?<![^\W_]){re.escape(item.lower())}(?![^\W_])", text) is not None

    return all(any(map(given, itertools.repeat(item), texts, numbers)) for item in wanted)


def _without_item_numbers(text: str) -> str:
    """A text without the numbers of a list's items, which count 1, 2, 3 ... from line to line."""
    count = 0

    def without(match: re.Match[str]) -> str:
        nonlocal count
        if int(match[1]) not in (1, count + 1):
            return match[0]
        count = int(match[1])
        return " "

    return _ITEM.sub(without, text)


def _tool(make: Callable[[], Any]) -> FunctionTool:
    execute = make()
    execute.__name__ = make.__name__
    try:
        return FunctionTool(execute)
    except ConfigError as error:
        raise ValueError(f"tau2's tool {make.__name__}: {error}") from error


def _finished(running: Any) -> Any:
    """The value of a coroutine that waits for nothing."""
    try:
        running.send(None)
    except StopIteration as end:
        return end.value
    finally:
        if inspect.iscoroutine(running):
            running.close()
    raise RuntimeError("a tool of tau2 waits for something")
