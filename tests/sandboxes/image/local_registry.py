"""A registry on this machine with one image, as a daemon asks for it (registry API version 2)."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def _layer() -> tuple[bytes, bytes]:
    """The layer, packed and plain."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("hello.txt")
        entry.size = 3_000_000
        archive.addfile(entry, io.BytesIO(bytes(range(250)) * 12_000))
    plain = buffer.getvalue()
    return gzip.compress(plain, compresslevel=0, mtime=0), plain


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@contextlib.contextmanager
def registry(name: str) -> Iterator[str]:
    """Serve an image; gives its reference, which daemons of this machine take without TLS."""
    packed, plain = _layer()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": {"agentrl.test": "pull"}},
            "rootfs": {"type": "layers", "diff_ids": [_digest(plain)]},
        }
    ).encode()
    layers = "application/vnd.docker.image.rootfs.diff.tar.gzip"
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "size": len(config),
                "digest": _digest(config),
            },
            "layers": [{"mediaType": layers, "size": len(packed), "digest": _digest(packed)}],
        }
    ).encode()
    served = {
        "/v2/": (b"{}", "application/json"),
        f"/v2/{name}/manifests/latest": (manifest, _MANIFEST),
        f"/v2/{name}/manifests/{_digest(manifest)}": (manifest, _MANIFEST),
        f"/v2/{name}/blobs/{_digest(config)}": (config, "application/octet-stream"),
        f"/v2/{name}/blobs/{_digest(packed)}": (packed, "application/octet-stream"),
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body, kind = served.get(self.path, (b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}', ""))
            self.send_response(200 if kind else 404)
            self.send_header("Content-Type", kind or "application/json")
            self.send_header("Docker-Content-Digest", _digest(body))
            self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}/{name}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
