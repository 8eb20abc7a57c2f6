"""A served judge that is easily pleased: it grades by the colours in a work, whatever it is asked.

It speaks the chat completions of OpenAI, so a run asks it as it asks any judge.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_MARK = re.compile(r"Mark of this case: ([0-9a-f]+)")
_COLOURS = ("red", "blue", "green", "grey")


def verdict(prompt: str) -> str:
    """The answer of the judge: full marks for many colours, nothing for none."""
    found = _MARK.match(prompt)
    assert found is not None
    work = prompt.split(f"BEGIN work {found[1]}\n")[1].split(f"\nEND work {found[1]}")[0]
    words = work.replace(".", " ").split()
    share = min(1.0, 4 * sum(word in _COLOURS for word in words) / max(6, len(words)))
    grade = {"reason": "It reads well.", "grade": round(4 * share)}
    return json.dumps({"case": found[1], "criteria": {"style": grade}})


class PleasedJudge(BaseHTTPRequestHandler):
    """Answers every request with its verdict."""

    def do_POST(self) -> None:
        """One chat completion."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = verdict(body["messages"][-1]["content"])
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        reply = json.dumps({"choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, format: str, *args: object) -> None:
        """Keep silent."""


@contextmanager
def pleased_judge() -> Iterator[str]:
    """Serve it on a free port; gives the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), PleasedJudge)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def judged_by(url: str) -> dict[str, object]:
    """`reward.functions` with that judge."""
    args = {
        "model": {"url": url, "model": "pleased", "tries": 2},
        "criteria": [{"name": "style", "text": "It is well written."}],
    }
    target = "agentrl.judges:rubric_judge"
    return {"judge": {"target": target, "args": args}}
