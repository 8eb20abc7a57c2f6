from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.errors import SyncError
from agentrl.sync.collective.rendezvous import make_store


def listeners(port: int) -> list[str]:
    """Local addresses, as the kernel writes them, at which somebody listens on this port."""
    found = []
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for row in table.read_text().splitlines()[1:]:
            _, local, _, state, *_ = row.split()
            if state == "0A" and local.endswith(f":{port:04X}"):
                found.append(local.rpartition(":")[0])
    return found


def test_the_store_listens_only_where_it_was_asked_to() -> None:
    """Fails if any host that reaches this one may write keys into the rendezvous."""
    store = make_store("127.0.0.1", 0, is_master=True, timeout_s=120)
    assert listeners(store.port) == ["0100007F"]
    other = make_store("127.0.0.1", store.port, is_master=False, timeout_s=120)
    other.set("key", "value")
    assert store.get("key") == b"value"
    with pytest.raises(SyncError, match=rf"cannot serve .* at 127\.0\.0\.1:{store.port}"):
        make_store("127.0.0.1", store.port, is_master=True, timeout_s=120)
