"""Seeds of tasks whose ids no UTF-8 text can hold, as names of files and escapes of JSON may be."""

from __future__ import annotations

from agentrl.rollout.seeds import rollout_seed
from agentrl.runtime.drivers.groups import stable_seed


def test_an_id_with_half_of_a_pair_of_surrogates_has_a_seed() -> None:
    # Such an id ended a run with a raw error at its first evaluation.
    ids = ("t", "t\ud800", "t\udfff")
    assert len({stable_seed(0, "eval", one) for one in ids}) == 3
    assert len({rollout_seed(0, one, 1) for one in ids}) == 3
