"""Sessions keep what was done, and what goes wrong in one call does not spoil the next."""

from __future__ import annotations

import asyncio

import pytest
from agentrl_tools.bash import BashSession
from agentrl_tools.python import PythonSession
from agentrl_tools.session import _Output

from agentrl.errors import SandboxError, ToolError
from agentrl.types import ToolStatus


@pytest.fixture
async def shell(sandbox):
    """Makes a call to one shell, with a limit in seconds."""
    tool = BashSession().fresh()
    yield lambda wall_s: _caller(tool, wall_s, "command", sandbox)
    await tool.close()


@pytest.fixture
def bash(shell):
    return shell(10)


@pytest.fixture
async def interpreter(sandbox):
    """As `shell`."""
    tool = PythonSession().fresh()
    yield lambda wall_s: _caller(tool, wall_s, "code", sandbox)
    await tool.close()


@pytest.fixture
def python(interpreter):
    return interpreter(10)


def _caller(tool, wall_s, argument, sandbox):
    async def call(text):
        tool.wall_s = wall_s
        return await tool.call({argument: text}, sandbox)

    return call


@pytest.mark.parametrize("word", ["break", "continue"])
async def test_leaving_a_loop_that_is_not_there_does_nothing(bash, word):
    """Fails if it acts on the loop that reads the commands."""
    await bash("x=1; false")
    result = await bash(f"echo $?; {word}; echo not reached")
    assert (result.text, result.status) == ("1", ToolStatus.OK)
    assert (await bash("echo $? $x")).text == "0 1"
    assert (await bash(f"for i in 1 2; do {word}; done; echo over")).text == "over"


@pytest.mark.parametrize("command", ["break 2", "while :; do break 9; done", "continue 9"])
async def test_leaving_more_loops_than_there_are_keeps_the_shell(bash, command):
    """Fails if the shell ends with the loops that read the commands."""
    await bash("x=1")
    for _ in range(3):
        assert (await bash(f"echo a; {command}")).text == "a"
    assert (await bash("echo $? $x")).text == "0 1"


async def test_a_shell_keeps_directory_variables_and_jobs(bash):
    first = await bash("mkdir d && cd d\nx='a  b'; f() { echo f$1; }; export Y=1; echo err >&2")
    assert (first.text, first.status) == ("err", ToolStatus.OK)
    assert (await bash('echo "$x"; f 2; basename "$PWD"; sh -c "echo $Y"')).text == (
        "a  b\nf2\nd\n1"
    )
    failed = await bash("echo out; false")
    assert (failed.text, failed.status) == ("out\n[exit status 1]", ToolStatus.ERROR)
    assert (await bash("echo $?")).text == "1"
    assert (await bash("")).text == "[no output]"
    await bash("sleep 50 & job=$!")
    assert (await bash("kill -0 $job && echo runs; cat; read line; echo $?")).text == "runs\n1"
    broken = await bash("echo 'open")
    assert "unexpected EOF" in broken.text
    assert (await bash("echo \u00e9 '\ud800' $x")).text == "\u00e9 ? a b"


async def test_a_command_that_runs_too_long_is_interrupted_and_the_shell_stays(bash, shell):
    """Fails if the shell is ended with it, or does not come back before the grace is over."""
    await bash("x=kept")
    late = await shell(2.0)("echo on; sleep 600")
    assert late.status is ToolStatus.TIMEOUT
    assert late.text == "on\n[stopped: it ran too long]"
    assert (await bash("echo $x")).text == "kept"


async def test_what_ignores_the_interrupt_is_ended_with_the_shell(bash, shell):
    await bash("x=kept; cd /")
    stubborn = await shell(0.5)(
        "trap '' INT; sh -c 'trap \"\" INT; echo on; sleep 70' & wait; sleep 71"
    )
    assert stubborn.status is ToolStatus.TIMEOUT
    assert "the shell has ended; the next call starts a new one" in stubborn.text
    after = await bash('echo "<$x>"; ps ax 2>/dev/null | grep -c "[s]leep 7[01]"')
    assert after.text.startswith("<>\n0")


async def test_what_ends_the_shell_is_told(bash, shell):
    gone = await bash("echo bye; exit 3")
    assert gone.text.startswith("bye\n[exit status 3]\n[the shell has ended;")
    assert gone.status is ToolStatus.ERROR
    assert (await bash("echo back")).text == "back"
    replaced = await shell(0.5)("exec sleep 60")
    assert replaced.status is ToolStatus.TIMEOUT
    assert (await bash("kill -9 $$")).status is ToolStatus.ERROR
    await bash("exec >/dev/null 2>&1")
    assert (await bash("echo unseen")).text == "[no output]"


async def test_a_flood_is_stopped_and_bounded(bash, sandbox):
    await bash("x=kept")
    flood = await bash("yes $(printf 'y%.0s' $(seq 1000))")
    assert flood.status is ToolStatus.ERROR
    assert flood.truncated
    assert flood.text.endswith("[stopped: it printed too much]")
    assert len(flood.text) < 10_000
    assert (await bash("echo $x")).text == "kept"
    much = await bash("echo head; head -c 200000 /dev/zero | tr '\\0' x; echo tail")
    assert much.status is ToolStatus.OK
    assert much.text.startswith("head\nxxx")
    assert much.text.endswith("xxxtail")


async def test_no_output_is_taken_for_the_end(bash, sandbox):
    """Fails with a fixed marker, and with one that a command can read while it runs."""
    forged = "for i in $(seq 3); do printf '\\036%s 0\\036' \"$n\"; done"
    assert (await bash(f"echo a; {forged}; false")).text.endswith("[exit status 1]")
    seen = await bash("set | grep -c '[0-9a-f]\\{32\\}'; ls /proc/self/fd | sort | xargs")
    assert seen.text == "0\n0 1 2 3"
    await bash("(until [ -e go ]; do sleep 0.02; done; echo late; touch printed) &")
    await sandbox.write_file("go", b"")
    while (await sandbox.exec(("ls", "printed"))).exit_code:
        await asyncio.sleep(0.02)
    assert (await bash("echo now")).text == "late\nnow"


def test_the_end_is_found_wherever_the_reads_are_cut():
    """Fails if what follows the marker is dropped, or a marker in two reads is output."""
    words = b"a" * 90 + b"\x1ebad 0\x1e" + b"\x1e0f 17\x1elater"
    for cut in range(len(words)):
        output = _Output(b"0f", 1000)
        output.add(words[:cut])
        unread = words[cut:]
        if not output.over:
            output.add(unread)
            unread = b""
        assert (output.status, output.text()) == (17, "a" * 90 + "\x1ebad 0\x1e"), cut
        assert output.rest + unread == b"later"
    output = _Output(b"0f", 100)
    for _ in range(50):
        output.add(b"\xc3\xa9" * 20)
    assert output.size <= 2000
    output.add(b"\x1e0f 0\x1e")
    text = output.text()
    assert output.left_out == 1900
    assert text == "\u00e9" * 25 + "\n[1900 bytes left out]\n" + "\u00e9" * 25


async def test_calls_of_one_turn_run_one_after_the_other(bash):
    calls = (bash(f"sleep 0.05; n=$((n+1)); echo {i}=$n") for i in range(4))
    results = await asyncio.gather(*calls)
    assert [result.text for result in results] == ["0=1", "1=2", "2=3", "3=4"]


async def test_a_call_that_was_cancelled_leaves_no_words_behind(bash):
    """Fails if the next call takes the output of the cancelled one for its own."""
    running = asyncio.create_task(bash("sleep 0.3; echo old"))
    await asyncio.sleep(0.15)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.sleep(0.3)
    assert (await bash("echo new")).text == "new"


async def test_rollouts_do_not_share_a_shell(sandbox):
    given = BashSession()
    first, second = given.fresh(), given.fresh()
    await first.call({"command": "x=1"}, sandbox)
    assert (await second.call({"command": "echo <$x>"}, sandbox)).status is ToolStatus.ERROR
    assert (await second.call({"command": 'echo "<$x>"'}, sandbox)).text == "<>"
    await first.close()
    await first.close()
    assert (await second.call({"command": "echo on"}, sandbox)).text == "on"
    await second.close()


async def test_python_keeps_what_was_defined(python):
    assert (await python("import math\ndef f(x):\n    return x * y\ny = 21")).text == "[no output]"
    assert (await python("print('a')\nf(2)")).text == "a\n42"
    wrong = await python("def g():\n    return 1 / 0\n\ng()")
    assert wrong.status is ToolStatus.ERROR
    assert wrong.text.startswith('Traceback (most recent call last):\n  File "<call 3>", line 4')
    assert "return 1 / 0" in wrong.text
    assert wrong.text.endswith("ZeroDivisionError: division by zero")
    assert "main()" not in wrong.text
    assert "SyntaxError" in (await python("def :")).text
    assert (await python("y")).text == "21"
    assert "EOFError" in (await python("input()")).text
    assert (await python("import os\nos.fork()\nNone")).text == "[no output]"
    assert (await python("y")).text == "21"


async def test_python_is_interrupted_and_stays(python, interpreter):
    await python("x = 'kept'")
    late = await interpreter(0.5)("print('on')\nwhile True: pass")
    assert late.status is ToolStatus.TIMEOUT
    assert late.text.startswith("on\nTraceback")
    assert late.text.endswith("KeyboardInterrupt\n[stopped: it ran too long]")
    child = await interpreter(0.5)("import subprocess; subprocess.run(['sleep', '60']); 'after'")
    assert child.status is ToolStatus.TIMEOUT
    assert (await python("x")).text == "'kept'"
    stubborn = await interpreter(0.5)(
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    )
    assert "what was defined is lost" in stubborn.text
    assert "NameError" in (await python("x")).text
    assert "[exit status 4]\n[the interpreter has ended" in (await python("exit(4)")).text


async def test_text_no_interpreter_can_take_is_the_models_mistake(bash, python):
    for call in (bash, python):
        with pytest.raises(ToolError, match="NUL"):
            await call("a\0b")
    assert (await python("len('''" + "x" * 300_000 + "''')")).text == "300000"
    assert (await python("'\ud800'")).text == "'?'"


async def test_a_failing_sandbox_is_not_shown_to_the_model(bash, sandbox):
    await bash("true")
    await sandbox.close()
    with pytest.raises(SandboxError):
        await bash("true")
    tool = BashSession().fresh()
    with pytest.raises(SandboxError):
        await tool.call({"command": "true"}, sandbox)
