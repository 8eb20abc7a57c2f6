"""A HumanEval-style check asks code in another sandbox as if it were a function of its own."""

from __future__ import annotations

import pytest
from agentrl_envs.code.env import problem_of
from agentrl_envs.code.runner import run_solution
from agentrl_sandboxes import make_backend

from agentrl.sandbox import SandboxLimits
from agentrl.types import Task

HONEST = {
    "named arguments": (
        "def f(a, b=1):\n    return a - b",
        "assert candidate(3, b=2) == 1\n    assert candidate(b=2, a=3) == 1",
    ),
    "an exception": (
        "def f(n):\n    if n < 0:\n        raise ValueError('below 0')\n    return n",
        "try:\n        candidate(-1)\n        assert False\n"
        "    except ValueError as error:\n        assert 'below 0' in str(error)",
    ),
    "an exception of the code's own class": (
        "class Mine(KeyError):\n    pass\ndef f(n):\n    raise Mine('x')",
        "try:\n        candidate(1)\n        assert False\n    except LookupError:\n        pass",
    ),
    "an exception that the task defines": (
        "def f(n):\n    raise Full('no room')",
        "try:\n        candidate(1)\n        assert False\n    except Full as error:\n        pass",
    ),
    "arguments that are changed": (
        "def f(items, seen, where):\n    items.sort()\n    seen.add(3)\n    where['x'] = [1]",
        "a, b, c = [2, 1], {1}, {}\n    assert candidate(a, b, where=c) is None\n"
        "    assert (a, b, c) == ([1, 2], {1, 3}, {'x': [1]})",
    ),
    "a generator": (
        "def f(n):\n    yield from range(n)",
        "assert list(candidate(3)) == [0, 1, 2]\n    assert next(candidate(1)) == 0",
    ),
    "a generator without end": (
        "def f():\n    n = 0\n    while True:\n        yield n\n        n += 1",
        "from itertools import islice\n    assert list(islice(candidate(), 3)) == [0, 1, 2]",
    ),
    "subclasses of plain types": (
        "from collections import Counter, OrderedDict, namedtuple\nimport enum\n"
        "P = namedtuple('P', 'x y')\nclass E(enum.IntEnum):\n    A = 2\n"
        "def f(n):\n    return [Counter('aab'), OrderedDict(a=1), P(1, 2), E.A][n]",
        "assert candidate(0) == {'a': 2, 'b': 1}\n    assert candidate(1) == {'a': 1}\n"
        "    assert candidate(2) == (1, 2)\n    assert candidate(3) == 2",
    ),
    "other plain values": (
        "def f(n):\n    return [b'\\x00a', 1 + 2j, range(1, 7, 2), frozenset([1])][n]",
        "assert candidate(0) == b'\\x00a'\n    assert candidate(1) == 1 + 2j\n"
        "    assert candidate(2) == range(1, 7, 2)\n    assert candidate(3) == {1}",
    ),
}
WRONG = {
    "an exception of another class": (
        "def f(n):\n    raise TypeError('no')",
        "try:\n        candidate(1)\n    except ValueError:\n        pass",
    ),
    "no exception": (
        "def f(n):\n    return n",
        "try:\n        candidate(1)\n        assert False\n    except ValueError:\n        pass",
    ),
    "more of a generator than is carried over": (
        "def f():\n    n = 0\n    while True:\n        yield n\n        n += 1",
        "assert sum(1 for _ in candidate()) > 0",
    ),
    "an end instead of an answer": (
        "import os\ndef f(n):\n    os._exit(0)",
        "try:\n        candidate(1)\n    except Exception:\n        pass",
    ),
    "an object that equals everything": (
        "class Any(list):\n    def __eq__(self, other):\n        return True\n"
        "def f(n):\n    return Any()",
        "assert candidate(1) == [1]",
    ),
    "arguments that are not changed": (
        "def f(items):\n    return sorted(items)",
        "a = [2, 1]\n    candidate(a)\n    assert a == [1, 2]",
    ),
}


async def passes(code: str, body: str) -> bool:
    setup = 'class Full(Exception):\n    pass\n\n\ndef f(*args):\n    """Do it."""\n'
    label = {"entry_point": "f", "prompt": setup, "test": f"def check(candidate):\n    {body}\n"}
    problem = problem_of(Task(id="t", prompt="x", label=label))
    backend = await make_backend("auto")
    try:
        tested, checks = [await backend.create(SandboxLimits()) for _ in range(2)]
        report = await run_solution(tested, code, problem, wall_s=2.0, check_sandbox=checks)
    finally:
        await backend.close()
    return report.solved


@pytest.mark.parametrize("name", HONEST)
async def test_what_a_function_may_do_is_carried_over(name: str) -> None:
    """Fails if only positional arguments go there and only plain values come back."""
    assert await passes(*HONEST[name])


@pytest.mark.parametrize("name", WRONG)
async def test_what_is_wrong_is_wrong_there_too(name: str) -> None:
    assert not await passes(*WRONG[name])
