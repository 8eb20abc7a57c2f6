"""Serve the fake cluster until stdin ends; prints its address when it is ready."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from aiohttp import web

from tests.sandboxes.kubernetes.fake_cluster.node import Node, forget_folder
from tests.sandboxes.kubernetes.fake_cluster.server import FakeCluster, kubeconfig
from tests.sandboxes.kubernetes.fake_cluster.store import Store


async def main(path: Path, port: int) -> None:
    """Serve, and end every pod at the end."""
    store = Store()
    cluster = FakeCluster(store)
    runner = web.AppRunner(cluster.application(), shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    bound: tuple[str, int] = runner.addresses[0]
    folder = Path(tempfile.mkdtemp(prefix="fake-cluster-", dir=path.parent))
    cluster.node = Node(store, folder, (bound[0], bound[1]))
    path.write_text(kubeconfig(f"http://{bound[0]}:{bound[1]}"), encoding="utf-8")
    sys.stdout.write(f"http://{bound[0]}:{bound[1]}\n")
    sys.stdout.flush()
    try:
        await asyncio.to_thread(sys.stdin.buffer.read)
    finally:
        await cluster.node.close()
        await runner.cleanup()
        forget_folder(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kubeconfig", type=Path, help="Where to write the kubeconfig.")
    parser.add_argument("--port", type=int, default=0, help="Of the API; 0 takes a free one.")
    given = parser.parse_args()
    asyncio.run(main(given.kubeconfig, given.port))
