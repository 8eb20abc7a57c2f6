"""Real servers, as child processes and over HTTP: good ones, and each kind of broken one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from functools import reduce
from pathlib import Path

import pytest
from agentrl_tools import mcp_connection
from agentrl_tools.mcp import McpServer, McpTool
from agentrl_tools.mcp_connection import Connection, ServerAddress

from agentrl.errors import ConfigError, EnvError, ToolError
from agentrl.types import ToolStatus

GOOD = """
import os, sys
from mcp.server import MCPServer
server = MCPServer("numbers")

@server.tool()
def add(a: int, b: int = 1) -> int:
    "Add two numbers."
    return a + b

@server.tool()
def fail() -> str:
    "Always fail."
    raise ValueError("no such thing")

@server.tool()
def word() -> str:
    "A variable of its environment."
    return os.environ["WORD"]

@server.tool()
def pid() -> int:
    "Its process id."
    return os.getpid()

if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run()
"""

# Speaks the protocol by hand: starts at once, and says and does what no SDK would.
ODD = """
import json, os, sys
names = ["pid", "hang", "die"]
tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
if len(sys.argv) > 1:
    tools = json.loads(sys.argv[1])
for line in sys.stdin:
    ask = json.loads(line)
    answer = {"jsonrpc": "2.0", "id": ask.get("id")}
    called = ask["method"] == "tools/call" and ask["params"]["name"]
    if "id" not in ask or called == "hang":
        continue
    if called == "die":
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)
    if called:
        answer["result"] = {"content": [{"type": "text", "text": str(os.getpid())}]}
    elif ask["method"] == "initialize":
        answer["result"] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                            "serverInfo": {"name": "odd", "version": "1"}}
    elif ask["method"] == "tools/list":
        answer["result"] = {"tools": tools}
    else:
        answer["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(answer), flush=True)
"""

STUCK = """if called == "hang":
        import time; time.sleep(1000)
    if "id" not in ask:"""


@pytest.fixture
def script(tmp_path: Path):
    def write(text: str, *args: str) -> list[str]:
        path = tmp_path / "server.py"
        path.write_text(text)
        return [sys.executable, str(path), *args]

    return write


@contextlib.asynccontextmanager
async def opened(**args):
    server = McpServer(**args)
    try:
        yield {tool.name: tool for tool in await server.open()}
    finally:
        await server.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


async def ended(pid: int) -> bool:
    deadline = time.monotonic() + 120
    while alive(pid) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return not alive(pid)


async def use(tools) -> None:
    """What any transport must give."""
    add = tools["add"]
    assert add.description == "Add two numbers."
    assert add.parameters["required"] == ["a"]
    result = await add.call(add.validate({"a": 2}), None)
    assert (result.text, result.status) == ("3", ToolStatus.OK)
    failed = await tools["fail"].call({}, None)
    assert failed.status is ToolStatus.ERROR
    assert "Error executing tool fail" in failed.text
    with pytest.raises(ToolError, match="Invalid arguments for add: a: 'x' is not of type"):
        add.validate({"a": "x"})
    with pytest.raises(ToolError, match="'a' is a required property"):
        add.validate({})
    together = await asyncio.gather(*(add.call({"a": n}, None) for n in range(20)))
    assert [r.text for r in together] == [str(n + 1) for n in range(20)]


async def test_a_server_on_stdio(script, monkeypatch):
    monkeypatch.setenv("SECRET", "word")
    only = ["add", "fail", "word"]
    async with opened(command=script(GOOD), env={"WORD": "a $SECRET"}, only=only) as tools:
        await use(tools)
        assert sorted(tools) == only
        assert (await tools["word"].call({}, None)).text == "a word"


async def test_a_server_is_started_before_the_clock_of_a_call(script, tmp_path):
    """Caught: a server slower than a call's limit was begun anew by each call, and stopped."""
    starts = tmp_path / "starts"
    begin = f"open({str(starts)!r}, 'a').write('x')"
    async with opened(command=script(f"{begin}\n{ODD}")) as tools:
        tool = tools["pid"].fresh()
        assert starts.read_text() == "x"
        await tool.make_ready()
        assert starts.read_text() == "xx"
        first = await tool.call({}, None)
        await tool.make_ready()
        assert (await tool.call({}, None)).text == first.text
        assert starts.read_text() == "xx"
        await tool.close()


async def test_a_server_ends_with_its_connection(script):
    async with opened(command=script(ODD), prefix="n_", only=["pid"]) as tools:
        (tool,) = tools.values()
        assert tool.name == "n_pid"
        pid = int((await tool.call({}, None)).text)
        assert alive(pid)
    assert await ended(pid)


async def test_a_server_over_http(script):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}/mcp"
    with pytest.raises(ConfigError, match=f"MCP server '{url}' cannot be used"):
        async with opened(url=url, open_s=5):
            pass
    with subprocess.Popen(script(GOOD, str(port)), stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(2400):
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                await asyncio.sleep(0.05)
            async with opened(url=url) as tools:
                await use(tools)
                process.kill()
                process.wait()
                with pytest.raises(EnvError, match="failed in 'add'"):
                    await tools["add"].call({"a": 1}, None)
        finally:
            process.kill()


async def test_a_server_that_dies_is_infrastructure_and_comes_back(script):
    """Fails if its end is told to the model, or if the next call is given the dead connection."""
    async with opened(command=script(ODD)) as tools:
        waiting = asyncio.create_task(tools["hang"].call({}, None))
        await asyncio.sleep(0.05)
        with pytest.raises(EnvError, match=r"(?s)failed in 'die'.*last words"):
            await tools["die"].call({}, None)
        with pytest.raises(EnvError, match="failed in 'hang'"):
            await waiting
        assert (await tools["pid"].call({}, None)).text.isdigit()


async def test_a_tool_that_ends_its_server_ends_no_other_rollout(script):
    """Fails if rollouts share a connection: what waits in the others would fail with it."""
    async with opened(command=script(ODD)) as tools:
        rollouts = [{name: tool.fresh() for name, tool in tools.items()} for _ in range(3)]
        pids = [int((await rollout["pid"].call({}, None)).text) for rollout in rollouts]
        assert len(set(pids)) == 3
        waiting = asyncio.create_task(rollouts[1]["hang"].call({}, None))
        await asyncio.sleep(0.05)
        # The server starts again and works: the call was at fault, and the model reads it.
        with pytest.raises(ToolError, match=r"(?s)ended the server.*last words"):
            await rollouts[0]["die"].call({}, None)
        again = int((await rollouts[0]["pid"].call({}, None)).text)
        assert again not in pids
        assert not waiting.done()
        for rollout, pid in zip(rollouts[1:], pids[1:], strict=True):
            assert (await rollout["pid"].call({}, None)).text == str(pid)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        for rollout in rollouts[:2]:
            await asyncio.gather(*(tool.close() for tool in rollout.values()))
        assert await ended(again)
        assert await ended(pids[1])
        assert alive(pids[2])
    assert await ended(pids[2])


async def test_a_server_that_does_not_come_back_is_infrastructure(script, tmp_path):
    once = ODD.replace('print("last words"', 'open(sys.argv[0], "w").write("exit(1)"); print("no"')
    async with opened(command=script(once)) as tools:
        mine = tools["die"].fresh()
        with pytest.raises(EnvError, match="failed in 'die'"):
            await mine.call({}, None)
        await mine.close()


async def test_an_answer_that_is_an_error_is_for_the_model(script):
    """Fails if a call that a living server cannot do costs the rollout."""
    odd = ODD.replace('if called == "die":', 'if called == "die" and 0:').replace(
        '    if called:\n', '    if called == "die":\n        answer["error"] = {"code": -32603, '
        '"message": "it broke"}\n    elif called:\n'
    )  # fmt: skip
    for shared in (True, False):
        async with opened(command=script(odd), shared=shared) as tools:
            mine = {name: tool.fresh() for name, tool in tools.items()}
            with pytest.raises(ToolError, match="call of die failed: MCPError: it broke"):
                await mine["die"].call({}, None)
            assert (await mine["pid"].call({}, None)).text.isdigit()
            await mine["pid"].close()


async def test_a_shared_server_is_one_for_all_rollouts(script):
    async with opened(command=script(ODD), shared=True) as tools:
        texts = [(await tools["pid"].fresh().call({}, None)).text for _ in range(3)]
        assert len(set(texts)) == 1


async def test_no_schema_of_a_server_makes_the_check_slow(script):
    """Fails if a pattern that backtracks meets what a model wrote on the event loop."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "^(a+)+$"},
            "b": {"type": "array", "uniqueItems": True},
        },
        "patternProperties": {"^(x+)+$": {"type": "string"}},
        "additionalProperties": False,
        "required": ["a"],
    }
    tools = json.dumps([{"name": "pid", "inputSchema": schema}])
    async with opened(command=script(ODD, tools)) as found:
        started = time.thread_time()
        many = [{"n": n} for n in range(5000)]
        found["pid"].validate({"a": "a" * 40 + "!", "b": many, "x" * 40 + "!": "y"})
        assert time.thread_time() - started < 1
        with pytest.raises(ToolError, match="'a' is a required property"):
            found["pid"].validate({"b": []})
        with pytest.raises(ToolError, match="a: 3 is not of type 'string'"):
            found["pid"].validate({"a": 3})


def _object(properties: dict, **more) -> dict:
    return {"type": "object", "properties": properties, **more}


CONNECTION = Connection(ServerAddress(command=("true",)), open_s=1)
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
PAIR = {"type": "array", "items": [{"type": "number"}, {"type": "string"}]}
NUMBER = {"type": "number"}
DEEP: dict = reduce(lambda inner, _: _object({"v": inner}), range(2000), {})
LIST = {"anyOf": [{"type": "null"}, _object({"rest": {"$ref": "#/$defs/L"}})]}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (_object({"v": PAIR}, **DRAFT_7), {"v": [1, "a"]}, {"v": ["a"]}),
        (
            _object({"v": {"$ref": "#/definitions/N"}}, definitions={"N": NUMBER}, **DRAFT_7),
            {"v": 1},
            {"v": "a"},
        ),
        # Many servers write the name of draft 7 for definitions into later drafts.
        (
            _object({"v": {"$ref": "#/definitions/N"}}, definitions={"N": NUMBER}),
            {"v": 1},
            {"v": "a"},
        ),
        (
            _object({"v": {"$ref": "#/$defs/L"}}, **{"$defs": {"L": LIST}}),
            {"v": {"rest": {"rest": None}}},
            {"v": {"rest": 3}},
        ),
        (_object({"$ref": {"type": "string"}}), {"$ref": "#/no"}, {"$ref": 3}),
        (_object({"v": {"const": {"$ref": "#/no"}}}), {"v": {"$ref": "#/no"}}, {"v": 3}),
        ({"properties": {"v": NUMBER}}, {"v": 1}, {"v": "a"}),
        # A pattern of ECMA-262 that Python cannot read.
        (_object({"v": {"type": "string", "pattern": "^\\p{L}+$"}}), {"v": "a"}, {"v": 3}),
    ],
)
def test_schemas_are_read_in_their_draft(schema, right, wrong):
    tool = McpTool(CONNECTION, name="t", shown="t", description="", parameters=schema, timeout_s=1)
    assert tool.validate(right) == right
    with pytest.raises(ToolError, match="Invalid arguments"):
        tool.validate(wrong)


def test_a_schema_of_nothing_allows_every_object():
    tool = McpTool(CONNECTION, name="t", shown="t", description="", parameters={}, timeout_s=1)
    assert tool.validate({"a": [1]}) == {"a": [1]}
    deep: dict = {}
    for _ in range(5000):
        deep = {"v": deep}
    assert tool.validate(deep) is deep


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (_object({"v": {"$ref": "#/$defs/M"}}), "refers to '#/\\$defs/M', which is not in it"),
        (
            _object({"v": {"$ref": "#/definitions/A"}}, definitions={"A": {"$ref": "#/no"}}),
            "refers to '#/no'",
        ),
        (_object({"v": {"$ref": "http://127.0.0.1:9/x.json"}}), "nothing is fetched"),
        (_object({"v": {"items": {"$ref": "other.json"}}}), "refers to 'other.json'"),
        (_object({}, **{"$ref": "#"}), "refers to itself without end"),
        ({"type": "string"}, "of type 'string'"),
        (_object({"v": {"type": 3}}), "a schema that is none"),
        (_object({"v": DEEP}), "nested too deep"),
        (_object({}, **{"$schema": {"a": 1}}), r"its \$schema is no text"),
        (_object({"v": {"$ref": "#/type"}}), r"'object' is not of type .* what '#/type' names"),
        (_object({"v": {"$ref": "#/n"}}, n={"type": 3}), "a schema that is none"),
        (
            _object({"v": {"anyOf": [{}]}, "w": {"$ref": "#/properties/v/anyOf/foo"}}),
            "anyOf/foo', which is not in it",
        ),
    ],
)
def test_schemas_that_cannot_be_used_are_refused_at_the_start(schema, said):
    """Fails if a rollout crashes at its first call, or if something is asked of the network."""
    with pytest.raises(ConfigError, match=said):
        McpTool(CONNECTION, name="t", shown="t", description="", parameters=schema, timeout_s=1)


async def test_a_call_that_hangs_does_not_hold_up_others(script):
    async with opened(command=script(ODD)) as tools:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await tools["hang"].call({}, None)
        assert (await tools["pid"].call({}, None)).text.isdigit()


async def test_a_server_that_one_call_has_stopped_is_started_again(script, monkeypatch):
    # All rollouts share the connection: one call would turn all later ones of a run into time-outs,
    # which count as the model's.
    monkeypatch.setattr(mcp_connection, "ALIVE_S", 0.3)
    stuck = ODD.replace('if "id" not in ask or called == "hang":', STUCK)
    async with opened(command=script(stuck)) as tools:
        first = (await tools["pid"].call({}, None)).text
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await tools["hang"].call({}, None)
        async with asyncio.timeout(120):
            assert (await tools["pid"].call({}, None)).text != first
        assert await ended(int(first))


async def test_a_server_ends_with_the_process_that_started_it(script, tmp_path):
    """Fails if only the closing of its stdin would end it: this one is stopped."""
    (tmp_path / "host.py").write_text(
        "import asyncio, sys, time\n"
        "from agentrl_tools.mcp import McpServer\n"
        "async def main():\n"
        "    server = McpServer(command=sys.argv[1:], only=['pid'])\n"
        "    (tool,) = await server.open()\n"
        "    print((await tool.call({}, None)).text, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    host = subprocess.Popen(
        [sys.executable, str(tmp_path / "host.py"), *script(ODD)], stdout=subprocess.PIPE, text=True
    )
    with host:
        pid = int(host.stdout.readline())
        os.kill(pid, signal.SIGSTOP)  # cannot notice anything
        host.kill()
    try:
        assert await ended(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("command", "message", "open_s"),
    [
        (["no-such-program"], "there is no program 'no-such-program'", 60),
        ([sys.executable, "-c", "raise SystemExit('no key given')"], "it said: no key given", 60),
        ([sys.executable, "-c", "while True: print('x' * 1000)"], "did not answer within 1 s", 1),
    ],
)
async def test_what_is_no_server_is_refused(command, message, open_s):
    started = time.monotonic()
    with pytest.raises(ConfigError, match=message):
        async with opened(command=command, open_s=open_s):
            pass
    assert time.monotonic() - started < 120


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ('[{"name": "t", "inputSchema": {"type": "string"}}]', "does not list its tools"),
        ('[{"name": "t", "inputSchema": {"type": "object", "properties": {"a": {"type": 3}}}}]',
         "a schema that is none"),
        ('[{"inputSchema": {"type": "object"}}]', "does not list its tools"),
        ('"none"', "does not list its tools"),
    ],
)  # fmt: skip
async def test_tools_that_are_not_described_are_refused(script, tools, message):
    with pytest.raises(ConfigError, match=message):
        async with opened(command=script(ODD, tools), open_s=120):
            pass


def test_a_wrong_address_is_refused():
    for args in ({}, {"command": ["x"], "url": "http://x"}, {"command": "x y"}):
        with pytest.raises(ConfigError, match="give one of them"):
            McpServer(**args)
    with pytest.raises(ConfigError, match="must begin with http"):
        McpServer(url="localhost:80")


async def test_unknown_names_are_refused(script, monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(ConfigError, match="did you mean 'hang'"):
        async with opened(command=script(ODD), only=["hong"]):
            pass
    with pytest.raises(ConfigError, match="env names the environment variable NOT_SET"):
        async with opened(command=script(ODD), env={"KEY": "$NOT_SET"}):
            pass
