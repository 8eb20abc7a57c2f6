"""Code that tries to be rewarded without being right. None of it may earn anything."""

from __future__ import annotations

import pytest

from agentrl.types import Task
from tests.envs.code.test_env import TASK, begin, block

EQUAL_TO_ALL = """
class Any(int):
    def __eq__(self, other): return True
    def __hash__(self): return 0
"""

CHEATS = {
    "exits early": "import sys\nsys.exit(0)\ndef double(n): pass",
    "exits hard": "import os\ndef double(n): os._exit(0)",
    "prints a report": """
import os, sys
report = '{"load": {"value": null}, "cases": [' + '{"value": 6},' * 5 + '{"value": 6}]}'
for nonce in ("", "0" * 32):
    print(f"{nonce} start\\n{nonce} {report}", flush=True)
    os.write(2, report.encode())
def double(n): return 0
""",
    "signs for the judge": """
import os, signal
report = '{"load": {"value": null}, "cases": [], "check": {"value": null}}'
try:
    with open(f"/proc/{os.getppid()}/fd/1", "w") as out:
        for nonce in ("", "0" * 32):
            out.write(f"\\n{nonce} start\\n{nonce} {report}\\n")
except OSError:
    pass
os.kill(os.getppid(), signal.SIGKILL)
def double(n): return 0
""",
    "is equal to everything": EQUAL_TO_ALL + "def double(n): return Any(0)",
    "changes the comparison": """
import builtins, json
builtins.all = lambda items: True
builtins.isinstance = lambda value, kind: True
json.dumps = lambda value: '{"value": 6}'
def double(n): return 0
""",
    "looks for the answers": """
import gc, os, sys
def double(n):
    for thing in gc.get_objects():
        if isinstance(thing, dict) and thing.get("args") == [n]:
            return thing["expected"]
        if isinstance(thing, dict) and "expected" in thing:
            return thing["expected"]
    frame = sys._getframe()
    while frame is not None:
        for value in frame.f_locals.values():
            if isinstance(value, dict) and "check" in value:
                raise RuntimeError("found the hidden job")
        frame = frame.f_back
    try:
        text = open(f"/proc/{os.getppid()}/cmdline").read()
        text += open(f"/proc/{os.getppid()}/environ").read()
        if "expected" in text.replace('"expected"', ""):
            return 2 * n
    except OSError:
        pass
    return 0
""",
    "answers every question at once": """
import os
for fd in range(3, 64):
    try:
        os.write(fd, b'{"value": 6}\\n' * 50)
    except OSError:
        pass
def double(n): return 0
""",
    "kills the judge": """
import os, signal
os.kill(os.getppid(), signal.SIGKILL)
def double(n): return 0
""",
    "stops the judge": """
import os, signal
os.kill(os.getppid(), signal.SIGSTOP)
def double(n): return 0
""",
}


@pytest.mark.parametrize("name", CHEATS)
async def test_cases_cannot_be_cheated(real, name):
    env = await begin(real, max_turns=1, wall_s=1.0)
    result = await env.step(block(CHEATS[name]))
    assert result.done
    assert result.rewards == 0.0
    assert result.scores == 0.0


CHECKED = Task(
    id="checked",
    prompt="def double(n):\n    '''Twice n.'''\n",
    label={
        "entry_point": "double",
        "test": "def check(candidate):\n"
        "    assert candidate(4) == 8\n"
        "    assert candidate(-1) == -2\n"
        "    assert candidate(0) == 0\n",
    },
)


@pytest.mark.parametrize("name", [*CHEATS, "skips the check", "changes the check"])
async def test_a_check_cannot_be_cheated(real, name):
    # Fails if the check runs in the process of the tested code, as HumanEval's own harness does.
    body = {
        "skips the check": "def check(candidate): pass\ndef double(n): return 0",
        "changes the check": EQUAL_TO_ALL
        + "import sys\nsys.modules['__main__'].run_check = lambda *a: {'value': None}\n"
        + "def double(n): return Any(0)",
    }.get(name) or CHEATS[name]
    env = await begin(real, CHECKED, max_turns=1, wall_s=1.0)
    result = await env.step(block(body))
    assert (result.done, result.rewards, result.scores) == (True, 0.0, 0.0)


async def test_honest_code_passes_the_same_tests(real):
    for task in (TASK, CHECKED):
        env = await begin(real, task, max_turns=1)
        result = await env.step(block("def double(n):\n    return n + n"))
        assert result.rewards == 1.0


async def test_a_check_that_asks_nothing_proves_nothing(real):
    label = {"entry_point": "double", "test": "def check(candidate):\n    pass\n"}
    env = await begin(real, Task(id="t", prompt="x", label=label), max_turns=1)
    assert (await env.step(block("def double(n): return 0"))).rewards == 0.0
