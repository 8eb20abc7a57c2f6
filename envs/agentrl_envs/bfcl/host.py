"""The back-ends of one BFCL conversation, in a process of their own. Loaded by path, not imported.

Their methods take whatever the model sends: a number to the power of another, a copy of a folder
into itself. What the model sends is data: it is passed as arguments to a documented method and
never becomes code. The expected calls run first, before anything of the model has touched the
process, and what they gave is kept.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib
import json
from typing import Any

_MOST_CHARS = 200_000


class BfclHost:
    """Back-ends of the model, and what the expected calls gave on a second set of them.

    Args:
        classes: back-ends to make.
        functions: what may be called, with the back-end it belongs to.
        config: initial states by back-end.
        expected: by user turn, the calls whose effects are the right ones.
        long_context: whether the back-ends pad what they hold.
    """

    OPERATIONS = ("call", "turn")

    def __init__(
        self,
        classes: list[str],
        functions: dict[str, str],
        config: dict[str, Any],
        expected: list[list[str]],
        long_context: bool,
    ) -> None:
        names = importlib.import_module("bfcl_eval.constants.executable_backend_config")
        self._checks = importlib.import_module(
            "bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker"
        )
        self._classes = {
            name: getattr(importlib.import_module(names.CLASS_FILE_PATH_MAPPING[name]), name)
            for name in classes
        }
        self._stateless = names.STATELESS_CLASSES
        self._functions = functions
        self._config = config
        self._long_context = long_context
        self._expected = self._run_expected(expected)
        self._instances = self._make()
        self._turn = 0
        self._results: list[str] = []

    def _make(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, backend in self._classes.items():
            made[name] = backend()
            if name not in self._stateless:
                made[name]._load_scenario(
                    copy.deepcopy(self._config.get(name, {})), long_context=self._long_context
                )
        return made

    def _run_expected(self, expected: list[list[str]]) -> list[tuple[list[str], dict[str, Any]]]:
        """By turn: what the expected calls gave, and the states after them."""
        instances = self._make()
        turns: list[tuple[list[str], dict[str, Any]]] = []
        for calls in expected:
            results = [self._run(instances, *_parsed(call))[1] for call in calls]
            turns.append((results, copy.deepcopy(instances)))
        return turns

    def _run(
        self, instances: dict[str, Any], name: str, given: list[Any], named: dict[str, Any]
    ) -> tuple[bool, str]:
        """Call a documented method; what it gave as text, just as BFCL's own runner words it."""
        try:
            if name not in self._functions:
                raise NameError(f"name {name!r} is not defined")
            value = getattr(instances[self._functions[name]], name)(*given, **named)
            if isinstance(value, dict):
                with contextlib.suppress(TypeError, ValueError):
                    return True, json.dumps(value)
            # Inside: a number may have more digits than Python writes out.
            return True, str(value)
        except Exception as error:
            return False, f"Error during execution: {error}"

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """One call of the model: whether the method returned, and the text the model sees."""
        ok, text = self._run(self._instances, name, [], copy.deepcopy(arguments))
        self._results.append(text)
        return {"ok": ok, "text": text[:_MOST_CHARS]}

    def turn(self, attempted: int) -> dict[str, Any]:
        """Compare the state and the results after a user turn with the expected ones.

        Args:
            attempted: calls the model made in this turn, those that could not run included.

        Returns:
            `valid`, and which check failed: `empty`, `state`, `response` or nothing.
        """
        expected, states = self._expected[self._turn]
        self._turn += 1
        if not expected:
            return {"valid": True, "error": ""}
        if not attempted:
            return {"valid": False, "error": "empty"}
        try:
            found = self._checks.state_checker(self._instances, states)
        except Exception:
            # The expected states compare well with each other: this one is the model's doing.
            found = {"valid": False}
        if not found["valid"]:
            return {"valid": False, "error": "state"}
        found = self._checks.response_checker(self._results, expected, self._turn - 1)
        return {"valid": found["valid"], "error": "" if found["valid"] else "response"}


def _parsed(call: str) -> tuple[str, list[Any], dict[str, Any]]:
    """An expected call of the dataset, `mv(source='a', destination='b')`, as data."""
    tree = ast.parse(call, mode="eval").body
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        raise ValueError(f"expected a call like f(a=1), got {call!r}")
    given = [ast.literal_eval(argument) for argument in tree.args]
    named = {str(word.arg): ast.literal_eval(word.value) for word in tree.keywords}
    return tree.func.id, given, named
