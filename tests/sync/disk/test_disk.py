from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from agentrl.errors import SyncError
from agentrl.sync.disk.disk import DiskReceiver, DiskSender
from tests.sync.sync_weights import assert_same, nudged, weights
from tests.warm_processes import Program


def names(directory: Path) -> list[str]:
    """Of the versions that the one sender of this directory holds."""
    return sorted(path.name for path in directory.glob("sender-*/*version-*"))


def test_whole_versions_arrive_and_the_newest_two_stay(tmp_path: Path) -> None:
    sender, receiver = DiskSender(tmp_path), DiskReceiver()
    receiver.connect(sender.connect(1)[0])
    tickets = []
    for version in range(1, 5):
        tickets.append(sender.send(iter(weights(version)), version))
        assert_same(receiver.receive(tickets[-1]), weights(version))
    assert names(tmp_path) == ["version-00000003", "version-00000004"]
    assert_same(DiskReceiver().receive(tickets[-2]), weights(3))
    with pytest.raises(SyncError, match=r"no weights in .*version-00000001"):
        list(receiver.receive(tickets[0]))
    sender.close()
    assert list(tmp_path.iterdir()) == []


def test_anyone_can_read_the_files(tmp_path: Path) -> None:
    ticket = DiskSender(tmp_path).send(weights(1), 1)
    read = load_file(Path(ticket.info["path"]) / "00000.safetensors")
    assert_same(sorted(read.items()), sorted(weights(1), key=lambda pair: pair[0]))


def test_patches_are_small_and_a_late_joiner_reads_the_chain(tmp_path: Path) -> None:
    """Fails if a version that others are based on is removed with the old ones."""
    sender, receiver = DiskSender(tmp_path, dense_every=5), DiskReceiver()
    sent, sizes = weights(0), []
    for version in range(1, 8):
        ticket = sender.send(sent, version)
        sizes.append(ticket.info["size_bytes"])
        assert_same(receiver.receive(ticket), sent)
        assert_same(DiskReceiver().receive(ticket), sent)
        sent = nudged(sent, version)
    assert sizes[0] == sizes[5] > 100 * max(*sizes[1:5], sizes[6])
    assert names(tmp_path) == ["version-00000006", "version-00000007"]


def test_a_receiver_that_missed_some_versions_catches_up(tmp_path: Path) -> None:
    sender, receiver = DiskSender(tmp_path, dense_every=9), DiskReceiver()
    sent = weights(0)
    for version in range(1, 6):
        ticket = sender.send(sent, version)
        if version != 3:
            assert_same(receiver.receive(ticket), sent)
        sent = nudged(sent, version)


def test_a_version_can_be_sent_again(tmp_path: Path) -> None:
    """Fails if it becomes a patch on itself: then nobody can read it, and whoever follows its
    chain never comes to an end."""
    sender, receiver = DiskSender(tmp_path, dense_every=5), DiskReceiver()
    first, second = weights(0), nudged(weights(0), 1)
    for sent, version in [(first, 1), (second, 2), (second, 2), (nudged(second, 2), 3)]:
        ticket = sender.send(sent, version)
        assert_same(receiver.receive(ticket), sent)
        assert_same(DiskReceiver().receive(ticket), sent)


def test_a_flipped_byte_and_a_cut_file_are_found(tmp_path: Path) -> None:
    ticket = DiskSender(tmp_path).send(weights(1), 1)
    file = Path(ticket.info["path"]) / "00000.safetensors"
    data = bytearray(file.read_bytes())
    data[-1000] ^= 1
    file.write_bytes(data)
    with pytest.raises(SyncError, match=r"'model\.ids' arrived damaged"):
        list(DiskReceiver().receive(ticket))
    file.write_bytes(data[:-1000])
    with pytest.raises(SyncError, match="cannot read"):
        list(DiskReceiver().receive(ticket))


def test_a_disk_that_fills_up_leaves_nothing_half_written(tmp_path: Path) -> None:
    """Fails if the hidden folder stays, or the error does not say where and what to do."""
    process = Program(
        """
        import resource, sys
        from pathlib import Path
        from tests.sync.sync_weights import assert_same, weights
        from agentrl.errors import SyncError
        from agentrl.sync.disk.disk import DiskReceiver, DiskSender
        sender = DiskSender(Path(sys.argv[1]), dense_every=3)
        first = sender.send(weights(1)[1:], 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
        try:
            sender.send(weights(2)[1:], 2)
        except SyncError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        """,
        [str(tmp_path)],
    )
    said = process.communicate()
    assert f"cannot write weights to {tmp_path}" in said
    assert "free some space" in said
    assert names(tmp_path) == ["version-00000001"]


def test_what_a_killed_sender_left_is_swept(tmp_path: Path) -> None:
    """Fails if the weights of killed runs fill the disk, or what is not a sender's goes."""
    process = Program(
        """
        import os, signal, sys
        from pathlib import Path
        from tests.sync.sync_weights import weights
        from agentrl.sync.disk.disk import DiskSender
        DiskSender(Path(sys.argv[1])).send(weights(0), 1)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        [str(tmp_path)],
    )
    process.communicate()
    assert names(tmp_path) == ["version-00000001"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "sender-unknown").mkdir()
    DiskSender(tmp_path).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "sender-unknown"]


@pytest.mark.parametrize("every", [1, 5])
def test_two_runs_share_a_directory(tmp_path: Path, every: int) -> None:
    """Fails if the start or the end of one takes the weights of the other away."""
    first, sent = DiskSender(tmp_path, dense_every=every), weights(0)
    first.send(sent, 1)
    sent = nudged(sent, 1)
    ticket = first.send(sent, 2)
    second = DiskSender(tmp_path, dense_every=every)
    assert_same(DiskReceiver().receive(second.send(weights(9), 2)), weights(9))
    second.close()
    assert_same(DiskReceiver().receive(ticket), sent)
    sent = nudged(sent, 2)
    assert_same(DiskReceiver().receive(first.send(sent, 3)), sent)


def test_a_base_that_is_gone_is_said_and_all_weights_follow(tmp_path: Path) -> None:
    """Fails if somebody's clean-up of the directory ends the run with a `KeyError`."""
    sender = DiskSender(tmp_path, dense_every=9)
    ticket = sender.send(weights(0), 1)
    shutil.rmtree(ticket.info["path"])
    with pytest.raises(SyncError, match="version 1, which version 2 is a patch of, is gone"):
        sender.send(weights(0), 2)
    assert_same(DiskReceiver().receive(sender.send(weights(3), 3)), weights(3))


def test_a_folder_that_is_not_shared_is_said_when_they_meet(tmp_path: Path) -> None:
    with pytest.raises(SyncError, match=r"no folder on this engine's host.*sync\.directory"):
        DiskReceiver().connect({"directory": str(tmp_path / "elsewhere")})
    (tmp_path / "file").touch()
    with pytest.raises(SyncError, match=r"sync\.directory"):
        DiskSender(tmp_path / "file")
