"""A server of the real package openenv, run as a program: guess a number between 0 and 99.

Some guesses stand for what goes wrong on servers: see `GuessGame.step`.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import time
import types

# openenv imports fastmcp, which asks for another mcp than ours, for environments that are MCP
# servers. This one is none, so the names are enough.
for name in ("fastmcp", "fastmcp.client", "fastmcp.client.client"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["fastmcp"].Client = object
sys.modules["fastmcp.client.client"].CallToolResult = object

import uvicorn  # noqa: E402
from fastapi import FastAPI  # noqa: E402
from openenv.core.env_server.http_server import HTTPEnvServer  # noqa: E402
from openenv.core.env_server.interfaces import Environment  # noqa: E402
from openenv.core.env_server.types import Action, Observation, State  # noqa: E402
from pydantic import Field  # noqa: E402


class Guess(Action):
    guess: int = Field(ge=0, description="A number from 0 to 99.")


class Hint(Observation):
    hint: str
    tries: int = 0
    deep: dict = Field(default_factory=lambda: {"word": "none"})


class GuessGame(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, top=100, **kwargs):
        self.secret, self.tries = random.Random(seed).randrange(top), 0
        over = bool(kwargs.get("over"))
        return Hint(hint=f"Below {top}.", done=over, metadata={"secret": self.secret})

    def step(self, action, timeout_s=None, **kwargs):
        if action.guess == 666:
            raise RuntimeError("the game broke")
        if action.guess == 667:
            return Hint(hint=None)
        if action.guess == 668:
            time.sleep(1.5)
        if action.guess == 669:
            os._exit(1)
        if action.guess == 670:
            return Hint(hint="y" * 20_000)
        self.tries += 1
        if action.guess == self.secret:
            return Hint(hint="Yes.", tries=self.tries, reward=1.0, done=True)
        word = "more" if action.guess < self.secret else "less"
        return Hint(hint=word, tries=self.tries, reward=-0.1, deep={"word": word})

    @property
    def state(self):
        return State()


if __name__ == "__main__":
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    app = FastAPI()
    HTTPEnvServer(GuessGame, Guess, Hint, max_concurrent_envs=2).register_routes(app)
    print(listener.getsockname()[1], flush=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    server.run(sockets=[listener])
