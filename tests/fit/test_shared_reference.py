"""A reference of which each rank of a fit holds a slice: asked by rank 0, computed by all."""

from __future__ import annotations

import pytest

from agentrl.errors import TrainError
from agentrl.fit.reference import reference_sums
from agentrl.fit.shared_reference import SharedReference
from agentrl.train.reference import Reference
from tests.fit.losses.fit_examples import examples, summed
from tests.train.crew import joined
from tests.train.tiny_llama import tiny_model

pytestmark = pytest.mark.slow


def asked(address, rank, world_size, folder, broken):
    """What this rank knows in the end, its packed rows, and whether it has opened the model."""
    ranks, opened, rows = joined(address, rank, world_size), [], []

    def open_reference():
        if not opened:
            opened.append(Reference(tiny_model(), ranks=ranks))
            whole = opened[0].row_log_probs

            def counting(micros):
                if broken == rank:
                    raise TrainError("a number that is not finite")
                rows.extend(key for micro in micros for key in micro.rows)
                return whole(micros)

            opened[0].row_log_probs = counting
        return opened[0]

    shared = SharedReference(ranks, open_reference)
    try:
        if not shared.first:
            found = shared.follow()
        else:
            found = reference_sums(
                folder, examples(6, pairs=True), model="tiny", micro_batch_tokens=32,
                prefix_sharing=True, open_reference=lambda: shared.ask,
                on_progress=lambda done, total: None,
            )  # fmt: skip
            shared.end(found)
        return found, set(rows), len(opened)
    except TrainError as error:
        return str(error)
    finally:
        ranks.close()


def test_each_rank_computes_its_share_and_all_know_the_sums(crew, tmp_path):
    """Fails if a rank loads all of it, computes what another does, or knows less than rank 0."""
    wanted = summed(tiny_model(), examples(6, pairs=True))
    first = crew.run(2, asked, tmp_path, None)
    for found, _, opened in first:
        assert found == pytest.approx(wanted, abs=1e-10)
        assert opened == 1
    (_, ours, _), (_, theirs, _) = first
    assert ours | theirs == wanted.keys()
    assert not ours & theirs
    assert min(len(ours), len(theirs)) > 3
    # Known from the file: nobody loads anything.
    for found, rows, opened in crew.run(2, asked, tmp_path, None):
        assert (found, rows, opened) == (first[0][0], set(), 0)


def test_a_rank_that_fails_is_named_and_keeps_none_waiting(crew, tmp_path):
    found = crew.run(2, asked, tmp_path, 1)
    assert found == [
        "1 of 2 ranks failed; rank 1: TrainError: a number that is not finite",
        "a number that is not finite",
    ]
    assert list(tmp_path.iterdir()) == []
