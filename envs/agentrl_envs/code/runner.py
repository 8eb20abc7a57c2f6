"""Runs one solution in a sandbox and compares what it returned, on this side of the sandbox.

    expected values, verdict          here
    the tested code (`harness`)       in one sandbox: is asked one call after the other
    a HumanEval-style `check`         in another sandbox (`check_judge`), whose calls are carried
                                      to the first and back as lines of plain data

So the sandbox of the tested code holds nothing that a verdict is made of: a forged answer earns
nothing unless it is the right one. Hidden inputs go there when the answers that the model may see
have come back, so they cannot be among these.
"""

from __future__ import annotations

import ast
import json
import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from typing import Any

from agentrl.errors import SandboxError
from agentrl.sandbox import Sandbox
from agentrl_envs.code.asked import AskedProgram, Over
from agentrl_envs.code.harness import MAX_BYTES, decode, encode
from agentrl_envs.code.parse import parsed

_SOURCES = {
    name: files("agentrl_envs.code").joinpath(f"{name}.py").read_text(encoding="utf-8")
    for name in ("harness", "check_judge")
}
HARNESS = _SOURCES["harness"]
CHECK_JUDGE = HARNESS.partition("if __name__")[0] + _SOURCES["check_judge"]
PATIENCE = 4
"""How many times its seconds of a processor the tested code may take on the clock."""
_SPARE_S = 2.0
"""How much later than the sandbox we end code that has taken its timers off."""
_CALL_BYTES = 1 << 20
"""Longest call that a `check` may make, as JSON."""
_SHOWN = 60
_MOST_LINES = 100
_ENDED = {True: "passed", False: "FAILED"}
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 150
_REPR.maxlist = _REPR.maxtuple = _REPR.maxset = _REPR.maxdict = 30
_REPR.maxlevel = 6
_REPR.maxlong = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call and what it must return."""

    args: tuple[Any, ...]
    """Plain data."""
    expected: Any
    """Plain data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The cases that a solution is tested against."""

    entry_point: str
    """The function to call."""
    public: tuple[Case, ...] = ()
    """Cases whose outcome the model may see."""
    hidden: tuple[Case, ...] = ()
    """Cases it never sees."""
    setup: str = ""
    """Source put before the solution and before the check: imports, helper functions."""
    check: str = ""
    """Source of a HumanEval-style `check(candidate)`; empty if `hidden` is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The results of one solution."""

    loaded: bool
    """Whether the code ran and defined the function."""
    public_passed: int
    """Public cases with the right answer."""
    public_total: int
    """All public cases."""
    hidden_passed: int
    """Hidden cases with the right answer; a `check` counts as one."""
    hidden_total: int
    """All hidden cases."""
    problem: str = ""
    """The first thing that went wrong with the code or a public case, in words for the model."""
    timed_out: bool = False
    """Whether the code ran past its wall limit."""
    tests: str = ""
    """Cases, one a line, with how each ended: for readers, never for the model."""
    said: str = ""
    """Words of a `check` about what was wrong, for readers too."""

    @property
    def public_ok(self) -> bool:
        """True if nothing that the model may see is wrong."""
        return self.loaded and self.public_passed == self.public_total

    @property
    def solved(self) -> bool:
        """True if all hidden cases are right; they alone decide."""
        return self.loaded and self.hidden_passed == self.hidden_total


async def run_solution(
    sandbox: Sandbox,
    code: str,
    problem: Problem,
    *,
    wall_s: float,
    python: str = "python3",
    check_sandbox: Sandbox | None = None,
) -> Report:
    """Test `code` against all cases.

    Args:
        sandbox: where it runs; new or wiped, and with sessions.
        code: the solution, untrusted.
        problem: the cases.
        wall_s: seconds of a processor the tested code may take in all, and four times as many on
            the clock, as the machine may be busy.
        python: the interpreter inside the sandboxes.
        check_sandbox: where `problem.check` runs; another one than `sandbox`, new or wiped.

    Raises:
        SandboxError: a sandbox failed, or an interpreter never started.
        ValueError: a problem with a `check`, and no other sandbox for that.
    """
    if problem.check and (check_sandbox is None or check_sandbox is sandbox):
        raise ValueError("run_solution: a problem with a check needs a check_sandbox of its own")
    patience = min(PATIENCE * wall_s, sandbox.limits.wall_s)
    load = {
        "code": f"{problem.setup}\n\n{code}" if problem.setup else code,
        "entry_point": problem.entry_point,
        "cpu_s": wall_s,
        "wall_s": patience,
    }
    async with AsyncExitStack() as stack:
        judge, complaint = None, ""
        if problem.check and check_sandbox is not None:
            # Before the tested code: it hides from programs of its user, if there can be any.
            judge = await AskedProgram.start(
                check_sandbox, python, CHECK_JUDGE, line_bytes=_CALL_BYTES
            )
            stack.push_async_callback(judge.close)
        tested = await AskedProgram.start(sandbox, python, HARNESS, line_bytes=MAX_BYTES)
        stack.push_async_callback(tested.close)
        tested.allow(patience + _SPARE_S)
        loaded, *public = await _ask(tested, [load, *map(_call, problem.public)])
        if "value" not in loaded:
            return _not_loaded(problem, _why(loaded, "The code", wall_s, tested.over), tested.over)
        right = [*map(_right, problem.public, public)]
        # Said before the tested code is given anything hidden, so it cannot depend on that.
        said = _first_wrong(problem, right, public, wall_s, tested.over)
        hidden = await _ask(tested, [*map(_call, problem.hidden)])
        passed = [*map(_right, problem.hidden, hidden)]
        if judge is not None:
            judge.allow(patience + 2 * _SPARE_S)
            complaint = await _check(judge, tested, problem)
            passed.append(complaint == "")
        lines = [
            *_case_lines("public", problem, problem.public, right, public, wall_s, tested.over),
            *_case_lines("hidden", problem, problem.hidden, passed, hidden, wall_s, tested.over),
        ]
        if judge is not None:
            lines.append(f"{_ENDED[passed[-1]]} check({problem.entry_point})")
        return Report(
            loaded=True,
            public_passed=sum(right),
            public_total=len(right),
            hidden_passed=sum(passed),
            hidden_total=len(passed),
            problem=said,
            timed_out=tested.over is Over.TIMEOUT,
            tests="\n".join(lines),
            said=complaint,
        )


async def _ask(
    program: AskedProgram, requests: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    lines = await program.ask([json.dumps(request).encode() for request in requests])
    return [_answer(line) for line in lines]


def _call(case: Case) -> Mapping[str, Any]:
    return {"call": [encode(argument) for argument in case.args]}


def _answer(line: bytes | None) -> Mapping[str, Any]:
    """What the tested code wrote, `value` decoded; empty if it is no answer."""
    try:
        answer = json.loads(line or b"")
        if "value" in answer:
            return {"value": decode(answer["value"])}
        if isinstance(answer["error"], str):
            return {"error": answer["error"]}
    except (ValueError, TypeError, KeyError, RecursionError):
        # Written by the tested code, which may write anything.
        return {}
    return {}


async def _check(judge: AskedProgram, tested: AskedProgram, problem: Problem) -> str:
    """Carry calls of the check to the tested code, until there is a verdict.

    Returns:
        What was wrong, in words for readers; empty where the check passed.

    Raises:
        SandboxError: there is no verdict, be it for what the code returned or for the machine.
    """
    job = {"setup": problem.setup, "check": problem.check, "entry_point": problem.entry_point}
    (line,) = await judge.ask([json.dumps(job).encode()])
    while line is not None and line.startswith(b'{"call"'):
        (answer,) = await tested.ask([line])
        (line,) = await judge.ask([b"{}" if answer is None else answer])
    try:
        verdict = json.loads(line or b"")
    except ValueError:
        verdict = None
    if verdict == {"verdict": ""}:
        return ""
    said = verdict.get("verdict") if isinstance(verdict, dict) else None
    if not isinstance(said, str):
        raise SandboxError(f"the check gave no verdict ({judge.over}): {line!r}")
    return f"The check: {said}"


def _not_loaded(problem: Problem, why: str, over: Over | None) -> Report:
    return Report(
        loaded=False,
        public_passed=0,
        public_total=len(problem.public),
        hidden_passed=0,
        hidden_total=len(problem.hidden) + bool(problem.check),
        problem=why,
        timed_out=over is Over.TIMEOUT,
    )


def same(expected: Any, got: Any) -> bool:
    """Equality of plain data: as `==`, but 1 is not True, floats are equal within 1e-6,
    and containers are of one type."""
    if isinstance(expected, bool) is not isinstance(got, bool):
        return False
    if isinstance(expected, float) or isinstance(got, float):
        if not isinstance(expected, int | float) or not isinstance(got, int | float):
            return False
        return math.isclose(expected, got, rel_tol=1e-6, abs_tol=1e-6) or (
            math.isnan(expected) and math.isnan(got)
        )
    if isinstance(expected, list | tuple):
        return (
            type(expected) is type(got)
            and len(expected) == len(got)
            and all(same(a, b) for a, b in zip(expected, got, strict=True))
        )
    if isinstance(expected, dict):
        return (
            isinstance(got, dict)
            and expected.keys() == got.keys()
            and all(same(value, got[key]) for key, value in expected.items())
        )
    return bool(expected == got)


def examples_of(prompt: str, entry_point: str) -> tuple[Case, ...]:
    """The `>>> entry_point(...)` examples of a HumanEval prompt that are plain data."""
    cases = []
    lines = prompt.splitlines()
    for line, after in pairwise(lines):
        if not line.strip().startswith(">>> "):
            continue
        tree = parsed(line.strip()[4:], expression=True)
        expected = parsed(after.strip(), expression=True)
        call = tree.body if isinstance(tree, ast.Expression) else None
        if expected is None or not isinstance(call, ast.Call) or call.keywords:
            continue  # an example in prose
        if not isinstance(call.func, ast.Name) or call.func.id != entry_point:
            continue
        try:
            arguments = tuple(ast.literal_eval(item) for item in call.args)
            cases.append(Case(args=arguments, expected=ast.literal_eval(expected)))
        except (ValueError, TypeError, RecursionError):
            continue  # a value that is no literal is not tested
    return tuple(cases)


def _right(case: Case, answer: Mapping[str, Any]) -> bool:
    try:
        return "value" in answer and same(case.expected, answer["value"])
    except (OverflowError, RecursionError):
        return False  # an integer beyond any float, or absurd nesting, is a wrong answer


def _first_wrong(
    problem: Problem,
    right: Sequence[bool],
    answers: Sequence[Mapping[str, Any]],
    wall_s: float,
    over: Over | None,
) -> str:
    """The first public case with a wrong answer, in words for the model; empty if there is none."""
    if all(right):
        return ""
    first = right.index(False)
    case, answer = problem.public[first], answers[first]
    call = _short(f"{problem.entry_point}({', '.join(map(repr, case.args))})")
    if "value" in answer:
        got, expected = _short(repr(answer["value"])), _short(repr(case.expected))
        return f"{call} returned {got}, expected {expected}."
    return _why(answer, call, wall_s, over)


def _case_lines(
    kind: str,
    problem: Problem,
    cases: Sequence[Case],
    right: Sequence[bool],
    answers: Sequence[Mapping[str, Any]],
    wall_s: float,
    over: Over | None,
) -> Iterator[str]:
    """One line a case, the first of each kind: how it ended, and of a wrong one what came back."""
    for number, (case, passed, answer) in enumerate(zip(cases, right, answers, strict=False)):
        if number == _MOST_LINES:
            rest = len(cases) - number
            yield f"{kind}: {rest} more, {sum(right[number : len(cases)])} of them passed"
            return
        # Inputs may be large; the repr of all of them is not.
        call = _short(f"{problem.entry_point}({', '.join(map(_shown_value, case.args))})", 160)
        line = f"{_ENDED[passed]} {kind} {call}"
        if passed:
            yield line
        elif "value" in answer:
            got, expected = _shown_value(answer["value"]), _shown_value(case.expected)
            yield f"{line}: returned {_short(got, 200)}, expected {_short(expected, 200)}"
        else:
            yield f"{line}: {_why(answer, 'it', wall_s, over)}"


def _shown_value(value: Any) -> str:
    try:
        return _REPR.repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return f"<{type(value).__name__}>"


def _why(answer: Mapping[str, Any], what: str, wall_s: float, over: Over | None) -> str:
    """The reason for an answer without a value, in words."""
    if "error" in answer:
        return f"{what} raised {_short(answer['error'], 160)}."
    if over is Over.TIMEOUT:
        return f"{what} did not finish within {wall_s:g} s."
    if over is Over.OOM:
        return f"{what} used too much memory."
    return f"{what} ended the program before it returned."


def _short(text: str, limit: int = _SHOWN) -> str:
    """One line of at most `limit` characters that any tokenizer can take."""
    text = " ".join(text.encode("utf-8", "replace").decode().split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def cases_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Case, ...]:
    """Cases from `{"args": [...], "expected": ...}` rows of a task."""
    return tuple(Case(args=tuple(row["args"]), expected=row["expected"]) for row in rows)
