"""Runs one solution in a sandbox and compares what it returned, on this side of the sandbox.

The expected values never enter the sandbox: the harness reports what the tested code returned, and
the comparison happens here on plain data. So a forged report earns nothing unless it holds the
right answers. Only a HumanEval-style `check`, which is code, has to run inside; see `harness`.
"""

from __future__ import annotations

import ast
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from typing import Any

from agentrl.errors import SandboxError
from agentrl.sandbox import ExecResult, Outcome, Sandbox
from agentrl_envs.code.harness import PATIENCE, decode, encode

HARNESS = files("agentrl_envs.code").joinpath("harness.py").read_text(encoding="utf-8")
STARTUP_S = 3.0
"""Added to the wall limit of the tested code for the interpreter and the judge."""
_SHOWN = 60


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
    """Source of a HumanEval-style `check(candidate)`; empty if `hidden` says it all."""


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

    @property
    def public_ok(self) -> bool:
        """True if nothing that the model may see is wrong."""
        return self.loaded and self.public_passed == self.public_total

    @property
    def solved(self) -> bool:
        """True if all hidden cases are right; they alone decide."""
        return self.loaded and self.hidden_passed == self.hidden_total


async def run_solution(
    sandbox: Sandbox, code: str, problem: Problem, *, wall_s: float, python: str = "python3"
) -> Report:
    """Test `code` against all cases in one `exec`.

    Args:
        sandbox: where it runs.
        code: the solution, untrusted.
        problem: the cases.
        wall_s: wall-clock seconds the tested code may take in all; up to four times as long while
            the machine gives it less than half of a core.
        python: the interpreter inside the sandbox.

    Raises:
        SandboxError: the sandbox failed, or the interpreter never started.
    """
    nonce = secrets.token_hex(16)
    job = {
        "nonce": nonce,
        "code": f"{problem.setup}\n\n{code}" if problem.setup else code,
        "entry_point": problem.entry_point,
        "wall_s": wall_s,
        "cases": [[encode(a) for a in case.args] for case in (*problem.public, *problem.hidden)],
        "setup": problem.setup,
        "check": problem.check,
    }
    result = await sandbox.exec(
        (python, "-I", "-S", "-c", HARNESS),
        stdin=json.dumps(job).encode(),
        timeout_s=min(PATIENCE * wall_s + STARTUP_S, sandbox.limits.wall_s),
    )
    return _judge(result, nonce, problem, wall_s)


def same(expected: Any, got: Any) -> bool:
    """Equality of plain data: as `==`, but floats within 1e-6 and containers of one type."""
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
        try:
            call = ast.parse(line.strip()[4:], mode="eval").body
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id == entry_point
                and not call.keywords
            ):
                arguments = tuple(ast.literal_eval(item) for item in call.args)
                cases.append(Case(args=arguments, expected=ast.literal_eval(after.strip())))
        except (SyntaxError, ValueError):
            continue  # an example in prose, or a value that is no literal, is not tested
    return tuple(cases)


def _judge(result: ExecResult, nonce: str, problem: Problem, wall_s: float) -> Report:
    lines = [line.removeprefix(nonce + " ") for line in result.stdout.splitlines() if nonce in line]
    total = len(problem.hidden) + bool(problem.check)
    none: dict[str, Any] = {
        "public_passed": 0,
        "public_total": len(problem.public),
        "hidden_passed": 0,
        "hidden_total": total,
    }
    if not lines:
        raise SandboxError(
            f"the test harness did not start: outcome {result.outcome}, exit status "
            f"{result.exit_code}, stderr {result.stderr[-300:]!r}; expected a Python 3.8 or newer "
            "named by the environment's `python` argument inside the sandbox"
        )
    if len(lines) < 2:
        # The judge started and did not finish, so the tested code took it down.
        slow = result.outcome is Outcome.TIMEOUT
        why = {
            Outcome.TIMEOUT: f"The code did not finish within {wall_s:g} s.",
            Outcome.OOM: "The code used too much memory.",
        }.get(result.outcome, "The code ended the program before it returned.")
        return Report(loaded=False, problem=why, timed_out=slow, **none)
    try:
        report = json.loads(lines[-1])
    except ValueError:
        # Only the tested code's own returns make a report longer than the sandbox keeps.
        return Report(loaded=False, problem="The returned values are too large.", **none)
    load = report["load"]
    if "value" not in load:
        why = _why(load, "The code", wall_s)
        return Report(loaded=False, problem=why, timed_out="timeout" in load, **none)
    answers = report["cases"]
    split = len(problem.public)
    public = [_right(*pair) for pair in zip(problem.public, answers[:split], strict=True)]
    hidden = [_right(*pair) for pair in zip(problem.hidden, answers[split:], strict=True)]
    if problem.check:
        hidden.append("value" in report["check"])
    first_wrong = next((i for i, right in enumerate(public) if not right), None)
    return Report(
        loaded=True,
        public_passed=sum(public),
        public_total=len(public),
        hidden_passed=sum(hidden),
        hidden_total=total,
        problem=""
        if first_wrong is None
        else _describe(problem, problem.public[first_wrong], answers[first_wrong], wall_s),
        timed_out=any("timeout" in answer for answer in answers),
    )


def _right(case: Case, answer: Mapping[str, Any]) -> bool:
    try:
        return "value" in answer and same(case.expected, decode(answer["value"]))
    except (OverflowError, RecursionError):
        return False  # an integer beyond any float, or absurd nesting, is a wrong answer


def _describe(problem: Problem, case: Case, answer: Mapping[str, Any], wall_s: float) -> str:
    call = _short(f"{problem.entry_point}({', '.join(map(repr, case.args))})")
    if "value" in answer:
        got = _short(repr(decode(answer["value"])))
        return f"{call} returned {got}, expected {_short(repr(case.expected))}."
    return _why(answer, call, wall_s)


def _why(answer: Mapping[str, Any], what: str, wall_s: float) -> str:
    if "error" in answer:
        return f"{what} raised {_short(answer['error'], 160)}."
    if "timeout" in answer:
        return f"{what} did not finish within {wall_s:g} s."
    return f"{what} ended the program before it returned."


def _short(text: str, limit: int = _SHOWN) -> str:
    """One line of at most `limit` characters that any tokenizer can take."""
    text = " ".join(text.encode("utf-8", "replace").decode().split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def cases_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Case, ...]:
    """Cases from `{"args": [...], "expected": ...}` rows of a task."""
    return tuple(Case(args=tuple(row["args"]), expected=row["expected"]) for row in rows)
