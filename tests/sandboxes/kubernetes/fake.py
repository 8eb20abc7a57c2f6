"""The fake cluster as a process of its own, and what tests ask of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from agentrl_sandboxes import KubernetesBackend

from tests.sandboxes.kubernetes.fake_cluster.server import TOKEN

IMAGE = "agentrl-sandbox"


class OnFake(KubernetesBackend):
    """Pods of the image that the daemon here has."""

    def __init__(self) -> None:
        super().__init__(IMAGE)


class RunningFake:
    """A running fake cluster."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.sandboxes.kubernetes.fake_cluster"),
                str(self.kubeconfig),
                *("--port", str(port)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().decode().strip()
        assert self.url, "the fake cluster did not start"

    @property
    def port(self) -> int:
        """Of the API."""
        return int(self.url.rpartition(":")[2])

    def call(self, path: str, body: Any = None) -> Any:
        """The answer to a request of the tests' own."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data)
        request.add_header("Authorization", f"Bearer {TOKEN}")
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.loads(answer.read())

    def pods(self) -> list[dict[str, Any]]:
        """Every pod there is."""
        return self.call("/api/v1/pods")["items"]

    def refuse(self, *rules: dict[str, Any]) -> None:
        """Refuse requests: `what` (a pattern of `verb resource`), `code`, `message`, `times`."""
        usual = {"reason": "Forbidden", "times": 1}
        self.call("/fake/refuse", [{**usual, **rule} for rule in rules])

    def let(self, event: str, name: str) -> None:
        """Let `evict`, `oom`, `lost` or `cut` happen to a pod."""
        self.call(f"/fake/pods/{name}/{event}", {})

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.send_signal(signal.SIGKILL)
        self._wait()

    def close(self) -> None:
        """End it with all its pods. Idempotent."""
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._wait()

    def _wait(self) -> None:
        self._process.wait(timeout=120)
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._process.stdout.close()
        self._process.stdin.close()
