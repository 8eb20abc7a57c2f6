"""An agent in a process of its own: it asks a served run for tasks and posts what it earned.

    export AGENTRL_GATEWAY_TOKEN=some-secret           # in both terminals
    agentrl gateway serve examples/my_agent.yaml       # in one
    python examples/outside_agent.py                   # in the other, as often as you like

Only the standard library is used here; any SDK of OpenAI or Anthropic takes the same address.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import Any


def post(url: str, body: Any) -> Any:
    """The answer to a JSON request."""
    headers = {
        "content-type": "application/json",
        "x-agentrl-token": os.environ.get("AGENTRL_GATEWAY_TOKEN", ""),
    }
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)


def play(session: dict[str, Any]) -> float:
    """One rollout: ask the model, judge its answer."""
    turn = post(
        f"{session['base_url']}/chat/completions",
        {"model": "policy", "messages": session["task"]["messages"]},
    )
    text = turn["choices"][0]["message"]["content"] or ""
    return float(str(session["task"]["label"]) in text)


def main(server: str) -> None:
    """Play whatever waits, until the server is gone."""
    patience_s = 120.0  # a model has to be loaded before anything waits
    while True:
        try:
            session = post(f"{server}/sessions/next", {"wait_s": 20})
        except urllib.error.URLError:
            if patience_s <= 0:
                return
            time.sleep(0.5)
            patience_s -= 0.5
            continue
        patience_s = 0.0
        if session["session"] is None:
            continue  # nothing waits now: the run may be training
        reward = play(session)
        post(f"{session['base_url']}/reward", {"reward": reward, "score": reward})


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8642")
