from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sandboxes.kubernetes.fake import RunningFake


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFake]:
    """A cluster that KUBECONFIG leads to, for all tests of this process."""
    found = RunningFake(tmp_path_factory.mktemp("cluster"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(found.kubeconfig))
        yield found
    found.close()
