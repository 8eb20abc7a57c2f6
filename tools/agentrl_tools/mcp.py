"""The tools of an MCP server, over stdio or streamable HTTP.

In a run file:

    env:
      tools:
        - target: agentrl_tools.mcp:McpServer
          args: {command: [uvx, mcp-server-time]}

Each rollout has a connection of its own, opened at its first call, so a server that one rollout
ends or confuses is nobody else's. What a tool answers is for the model, its errors too. Where a
call fails in another way, the server is asked for its tools once more, after a new start if it has
ended: if it lists them, the call was at fault and the model reads that; if not, the server is, and
the rollout fails without a reward.

With `shared: true` one connection serves all rollouts of a process, which saves starting servers;
the server must then keep their work apart, and when it ends, all rollouts that wait for an answer
fail without a reward.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from agentrl.errors import ConfigError, EnvError, ToolError, choices
from agentrl.sandbox import Sandbox
from agentrl.tool import Tool, ToolSet
from agentrl.types import ToolResult, ToolStatus
from agentrl_tools.mcp_connection import Connection, ServerAddress
from agentrl_tools.mcp_schema import schema_validator

MAX_PAGES = 100
"""A server that lists more pages of tools than this is broken."""


class McpServer(ToolSet):
    """All tools of one server, or those that are named."""

    def __init__(
        self,
        *,
        command: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        url: str = "",
        headers: Mapping[str, str] | None = None,
        only: Sequence[str] = (),
        prefix: str = "",
        timeout_s: float = 30.0,
        open_s: float = 30.0,
        shared: bool = False,
    ) -> None:
        """Set where the server is; nothing is started yet.

        Args:
            command: program and arguments of a server that speaks on its stdin and stdout.
            env: added to its environment; `$NAME` stands for a variable of ours.
            cwd: where it starts.
            url: of a server that speaks streamable HTTP.
            headers: sent with every request; `$NAME` stands for a variable of ours.
            only: names of the tools to offer; default all.
            prefix: put before the names the model sees, where two servers share one.
            timeout_s: wall-clock limit of one call in seconds, once the server is there.
            open_s: seconds the server may take until it answers, whatever a call may take.
            shared: one connection for all rollouts of a process, for servers that are slow to start
                and keep nothing.

        Raises:
            ConfigError: not exactly one of `command` and `url`.
        """
        if bool(command) == bool(url) or isinstance(command, str):
            raise ConfigError(
                f"McpServer: got command={command!r} and url={url!r}; give one of them, the "
                "command as a list of program and arguments"
            )
        if url and not url.startswith(("http://", "https://")):
            raise ConfigError(f"McpServer: url {url!r} must begin with http:// or https://")
        address = ServerAddress(
            command=tuple(command), env=env or {}, cwd=cwd, url=url, headers=headers or {}
        )
        self._connection = Connection(address, open_s=open_s)
        self._rollouts = None if shared else RolloutConnections(address, open_s=open_s)
        self._only = tuple(only)
        self._prefix = prefix
        self._timeout_s = timeout_s

    async def open(self) -> Sequence[Tool]:
        """Connect and list the tools; see `ToolSet.open`."""
        address = self._connection.address
        try:
            listed = {tool.name: tool for tool in await self._listed()}
        except EnvError as error:
            raise ConfigError(str(error)) from error
        for name in self._only:
            if name not in listed:
                raise ConfigError(f"{address}: 'only' names a tool: {choices(name, listed)}")
        return [
            McpTool(
                self._connection,
                name=name,
                shown=f"{self._prefix}{name}",
                description=tool.description or "",
                parameters=tool.input_schema,
                timeout_s=self._timeout_s,
                rollouts=self._rollouts,
            )
            for name, tool in listed.items()
            if name in self._only or not self._only
        ]

    async def close(self) -> None:
        """Disconnect, and end a server that we started."""
        await self._connection.close()
        if self._rollouts is not None:
            await self._rollouts.close()

    async def _listed(self) -> list[Any]:
        client = await self._connection.client()
        tools: list[Any] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            try:
                page = await client.list_tools(cursor=cursor)
            except Exception as error:  # whatever the SDK makes of a bad answer
                raise EnvError(
                    f"{self._connection.address} does not list its tools: "
                    f"{type(error).__name__}: {error}{self._connection.last_words()}"
                ) from error
            tools.extend(page.tools)
            cursor = page.next_cursor
            if cursor is None:
                return tools
        raise EnvError(f"{self._connection.address} lists more than {MAX_PAGES} pages of tools")


class McpTool(Tool):
    """One tool of a server."""

    def __init__(
        self,
        connection: Connection,
        *,
        name: str,
        shown: str,
        description: str,
        parameters: Mapping[str, Any],
        timeout_s: float,
        rollouts: RolloutConnections | None = None,
    ) -> None:
        """Take the server's description of it.

        Args:
            connection: what it is called over.
            name: the server's name of it.
            shown: the name the model calls it by.
            description: for the model.
            parameters: the server's JSON schema of its arguments.
            timeout_s: wall-clock limit of one call in seconds.
            rollouts: gives each rollout a connection; None shares this one.

        Raises:
            ConfigError: its arguments are not described by a JSON schema of an object.
        """
        # A schema of nothing allows every object.
        parameters = {"type": "object", **parameters}
        try:
            self._validator = schema_validator(parameters)
        except ValueError as error:
            raise ConfigError(
                f"{connection.address}: tool {name!r} has {error}; leave the tool out with 'only' "
                "or mend the server"
            ) from None
        self.name = shown
        self.description = description
        self.parameters = parameters
        self.timeout_s = timeout_s
        self._connection = connection
        self._its_name = name
        self._rollouts = rollouts
        self._own = False

    def fresh(self) -> McpTool:
        """The tool over the connection of one rollout, which its tools share."""
        if self._rollouts is None:
            return self
        other = copy.copy(self)
        other._connection, other._own = self._rollouts.of(self.name), True
        return other

    async def close(self) -> None:
        """End the connection of the rollout, and the server if we started it."""
        if self._own and self._rollouts is not None:
            await self._rollouts.end(self._connection)

    def validate(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check against the server's schema; see `Tool.validate`."""
        # The first few: a model can make a hundred thousand of them.
        try:
            errors = list(islice(self._validator.iter_errors(dict(arguments)), 5))
        except RecursionError:
            raise ToolError(f"Invalid arguments for {self.name}: nested too deep") from None
        if errors:
            lines = [f"{e.json_path.removeprefix('$.')}: {e.message[:300]}" for e in errors]
            raise ToolError(f"Invalid arguments for {self.name}: {'; '.join(lines)}")
        return arguments

    async def make_ready(self) -> None:
        """Start the server where it is not there yet, for at most `open_s`.

        Raises:
            EnvError: the server does not answer as one.
        """
        await self._connection.client()

    async def call(self, arguments: Mapping[str, Any], sandbox: Sandbox | None) -> ToolResult:
        """Call the tool on its server.

        Raises:
            ToolError: the server refuses the arguments, or cannot do with them and works without.
            EnvError: the server is gone or does not speak as one; the next call connects anew.
        """
        client = await self._connection.client()
        try:
            answer = await client.call_tool(self._its_name, dict(arguments))
        except asyncio.CancelledError:
            self._connection.doubt(client)
            raise
        except Exception as error:  # boundary to the SDK, which raises many kinds
            raise await self._failure(error, client) from error
        status = ToolStatus.ERROR if answer.is_error else ToolStatus.OK
        return ToolResult(text=_text(answer), status=status, data=answer.structured_content)

    async def _failure(self, error: Exception, client: Any) -> ToolError | EnvError:
        """The error to raise for one of the SDK's: the model's where the call was at fault."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS

        code = error.code if isinstance(error, MCPError) else CONNECTION_CLOSED
        if isinstance(error, MCPError) and code == INVALID_PARAMS:
            return ToolError(f"Error: {error.message}")
        said = f"{type(error).__name__}: {error}{self._connection.last_words()}"
        ended = code == CONNECTION_CLOSED
        if ended:
            await self._connection.lose(client)
        # The answers of a shared connection stop for all when one call ends the server.
        if (self._own or not ended) and await self._connection.works():
            what = "ended the server, which has forgotten what it kept" if ended else "failed"
            return ToolError(f"Error: the call of {self.name} {what}: {said}")
        return EnvError(f"{self._connection.address} failed in {self._its_name!r}: {said}")


class RolloutConnections:
    """The connections of the rollouts under way; all tools of a rollout use the same."""

    def __init__(self, address: ServerAddress, *, open_s: float) -> None:
        self._address = address
        self._open_s = open_s
        self._open: set[Connection] = set()
        self._newest: Connection | None = None
        self._given: set[str] = set()

    def of(self, tool: str) -> Connection:
        """The connection for a tool of the rollout that is being made.

        A rollout asks for each tool once and for all of them without a pause, so a tool that is
        asked for again begins the next rollout.
        """
        if self._newest is None or tool in self._given:
            self._newest = Connection(self._address, open_s=self._open_s)
            self._open.add(self._newest)
            self._given.clear()
        self._given.add(tool)
        return self._newest

    async def end(self, connection: Connection) -> None:
        """Close the connection of a rollout that is over. Idempotent."""
        self._open.discard(connection)
        await connection.close()

    async def close(self) -> None:
        """Close what is left."""
        self._newest = None
        await asyncio.gather(*(self.end(connection) for connection in tuple(self._open)))


def _text(answer: Any) -> str:
    """The text of an answer for the model; parts that are no text are named."""
    parts: list[str] = []
    for block in answer.content:
        if block.type == "text":
            parts.append(block.text)
        elif block.type == "resource" and getattr(block.resource, "text", None) is not None:
            parts.append(block.resource.text)
        elif block.type == "resource_link":
            parts.append(f"[resource {block.uri}]")
        else:
            parts.append(f"[{block.type}, not shown]")
    if not parts and answer.structured_content is not None:
        parts.append(json.dumps(answer.structured_content, ensure_ascii=False))
    return "\n".join(parts) or "[no output]"
