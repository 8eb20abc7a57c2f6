"""`agentrl prove`: it passes what is right and says where what is wrong breaks."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import torch

from agentrl import estimators
from agentrl.config.presets import PRESETS
from agentrl.config.schema import AlgorithmSection
from agentrl.errors import ConfigError
from agentrl.train import losses, objective
from agentrl.train.losses import LossInputs, TokenLosses, policy_loss
from agentrl.train.losses.penalty import entropy_loss
from agentrl.train.prove import ProbeSizes, Proof, prove
from agentrl.types.finding import Status

pytestmark = pytest.mark.slow

MASKS = ("response_mask", "observation_mask")


SIZES = ProbeSizes(micro_batch_tokens=1024, response_tokens=1024)


def proof(**changes) -> Proof:
    return prove(AlgorithmSection(**changes).resolved(horizon=32), sizes=SIZES)


def failures(found: Proof) -> dict[str, str]:
    return {check.name: check.detail for check in found.checks if check.status is not Status.OK}


MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
LOSSES = ("ppo_clip", "gspo", "cispo", "tis_reinforce", "sapo")
ASSEMBLIES = {
    **{f"{loss}-{mode}": {"policy_loss": loss, "loss_agg_mode": mode}
       for index, loss in enumerate(LOSSES) for mode in (MODES * 2)[index % 4 : index % 4 + 2]},
    **{preset: {"preset": preset} for preset in PRESETS},
    "dual": {"dual_clip": 3.0, "loss_agg_mode": "seq-mean-token-sum"},
    **{kind: {"old_log_probs": "recompute", "is_correction_type": kind}
       for kind in ("tis", "icepop", "seq-mask-tis")},
    **{f"gspo-{kind}": {"preset": "gspo", "old_log_probs": "recompute", "is_correction_type": kind}
       for kind in ("tis", "icepop", "seq-mask-tis")},
    "decoupled": {"old_log_probs": "decoupled", "loss_agg_mode": "seq-mean-token-mean"},
    "sequence": {"preset": "tis_reinforce", "importance_level": "sequence"},
    **{kl: {"preset": "grpo", "kl_coef": 0.1, "kl_estimator": kl} for kl in ("k2", "k3", "k3+")},
    "kl-reward": {"preset": "reinforce++", "kl_coef": 0.1},
    "ppo-kl": {"preset": "ppo", "kl_coef": 0.1, "gamma": 0.9},
    "entropy": {"entropy_coef": 0.3},
    "gspo-entropy-kl": {"preset": "gspo", "entropy_coef": 0.3, "kl_coef": 0.1},
    "to-go": {"preset": "rloo", "turn_rewards": "return_to_go"},
}  # fmt: skip


@pytest.mark.parametrize("changes", ASSEMBLIES.values(), ids=ASSEMBLIES.keys())
def test_every_assembly_passes(changes):
    found = proof(**changes)
    assert not failures(found)
    assert len(found.checks) > 20
    errors = [check.error for check in found.checks if check.error is not None]
    assert len(errors) in (11, 12)  # 12 where a rollout may be in several micro-batches
    assert max(errors) < 1e-12
    if "turn_rewards" not in changes:  # there, rows of a rollout may be left out one by one
        assert not [check.detail for check in found.checks if "metrics" in check.detail]


@policy_loss("prove_world_model", masks=MASKS, zero_advantage_rows=True, whole_rollouts=True)
def world_model(inputs: LossInputs) -> TokenLosses:
    nats = inputs.aggregate(-inputs.log_probs_R, mask="observation_mask")
    apart = (inputs.log_probs_R - inputs.old_log_probs_R).square()
    return TokenLosses(
        loss_R=-inputs.advantages_R * inputs.log_probs_R,
        total=0.1 * nats + inputs.aggregate(apart, mask="response_mask"),
        metrics={"mine/nats@sum": nats, "mine/apart@max": apart},
    )


@policy_loss("prove_scaled", apply_loss_scale=False, masks=("final_response_mask",))
def scaled(inputs: LossInputs) -> TokenLosses:
    loss = -inputs.advantages_R * inputs.log_probs_R
    return TokenLosses(total=inputs.loss_scale * inputs.aggregate(loss, mask="final_response_mask"))


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_a_custom_loss_over_several_masks_passes(mode):
    found = proof(policy_loss="prove_world_model", loss_agg_mode=mode)
    # Not the gradient of REINFORCE, which is reported and required of nobody.
    assert list(failures(found)) == ["on-policy identity"]
    assert found.passed


def test_a_loss_that_scales_itself_passes():
    found = proof(policy_loss="prove_scaled", loss_agg_mode="token-mean")
    assert set(failures(found)) <= {"on-policy identity"}


@policy_loss("prove_local_tokens")
def local_tokens(inputs: LossInputs) -> TokenLosses:
    kept = inputs.trained(-inputs.advantages_R * inputs.log_probs_R)
    return TokenLosses(total=kept.sum() / inputs.mask_R.sum().clamp(min=1))


@policy_loss("prove_local_rollouts")
def local_rollouts(inputs: LossInputs) -> TokenLosses:
    kept = inputs.trained(-inputs.advantages_R * inputs.log_probs_R)
    return TokenLosses(total=kept.sum() / max(inputs.num_sequences, 1))


@pytest.mark.parametrize("name", ["prove_local_tokens", "prove_local_rollouts"])
def test_a_local_denominator_fails_and_is_located(name):
    found = proof(policy_loss=name)
    assert not found.passed
    broken = failures(found)
    assert {"smallest micro-batches", "2 ranks", "another order"} <= set(broken)
    assert "zero_advantage_rows" not in broken.get("rows without advantage", "")
    # Packed as the reference is, there is nothing to see.
    assert "shared prefixes" not in broken
    where = broken["smallest micro-batches"]
    assert re.search(r"of \d+ tokens, \d+ micro-batches: g\d/\d at \d+ \(.* instead of", where)


def test_a_local_denominator_of_the_entropy_fails(monkeypatch):
    def local(entropy_R, *, weights_R, mask_R, entropy_coef):
        own = mask_R.sum().clamp(min=1)
        return entropy_loss(
            entropy_R,
            weights_R=torch.ones_like(weights_R) / own,
            mask_R=mask_R,
            entropy_coef=entropy_coef,
        )

    monkeypatch.setattr(objective, "entropy_loss", local)
    found = proof(entropy_coef=0.3, loss_agg_mode="token-mean")
    broken = failures(found)
    assert not found.passed
    assert {"smallest micro-batches", "2 ranks", "another order"} <= set(broken)
    assert any(name.startswith("micro-batches to") for name in broken)


def test_an_entropy_that_looks_at_masked_tokens_fails(monkeypatch):
    def unmasked(entropy_R, *, weights_R, mask_R, entropy_coef):
        return entropy_loss(
            entropy_R,
            weights_R=weights_R,
            mask_R=torch.ones_like(mask_R),
            entropy_coef=entropy_coef,
        )

    monkeypatch.setattr(objective, "entropy_loss", unmasked)
    assert {"NaN in masked weights", "1e4 in masked weights"} <= set(
        failures(proof(entropy_coef=0.3, policy_loss="prove_world_model"))
    )


@policy_loss("prove_scaled_twice", masks=("final_response_mask",))
def scaled_twice(inputs: LossInputs) -> TokenLosses:
    loss = -inputs.advantages_R * inputs.log_probs_R
    return TokenLosses(total=inputs.loss_scale * inputs.aggregate(loss, mask="final_response_mask"))


def test_a_loss_that_is_scaled_twice_fails_on_several_ranks_only():
    found = proof(policy_loss="prove_scaled_twice", loss_agg_mode="token-mean")
    required = {c.name for c in found.checks if c.status is Status.FAIL}
    assert required == {
        "2 ranks", "3 ranks", "split, shared, 3 ranks, small", "micro-batches to 2048 tokens",
    }  # fmt: skip


@policy_loss("prove_parts")
def parts(inputs: LossInputs) -> TokenLosses:
    """A ratio of the sequence, made of whatever part of it is here."""
    own = inputs.log_ratio()
    sums = own.new_zeros(inputs.num_sequences).index_add(0, inputs.sequence_R, own)
    return TokenLosses(loss_R=-sums[inputs.sequence_R].exp() * inputs.advantages_R)


def test_a_ratio_of_parts_of_a_rollout_fails_where_rollouts_are_split():
    found = proof(policy_loss="prove_parts")
    assert "split rollouts" in failures(found)
    assert "smallest micro-batches" not in failures(found)


@policy_loss("prove_forgets_rows")
def forgets_rows(inputs: LossInputs) -> TokenLosses:
    """Has a gradient without an advantage and does not say so."""
    return TokenLosses(loss_R=(inputs.log_probs_R + 1.0).square())


def test_rows_that_should_have_been_computed_are_asked_for():
    broken = failures(proof(policy_loss="prove_forgets_rows"))
    assert "zero_advantage_rows=True" in broken["rows without advantage"]
    assert re.search(r"g\d/\d at \d+", broken["rows without advantage"])
    kinds = {name.split(",")[0] for name in broken}  # advantages are not looked at either
    assert kinds == {"rows without advantage", "on-policy identity", "direction"}


@policy_loss("prove_raises")
def raises(inputs: LossInputs) -> TokenLosses:
    return TokenLosses(loss_R=inputs.masks["observation_mask"] * inputs.log_probs_R)


@policy_loss("prove_nan", masks=("final_response_mask",))
def not_finite(inputs: LossInputs) -> TokenLosses:
    return TokenLosses(loss_R=torch.log(inputs.log_probs_R) * inputs.advantages_R)


@policy_loss("prove_constant")
def constant(inputs: LossInputs) -> TokenLosses:
    return TokenLosses(loss_R=inputs.advantages_R)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("prove_raises", "KeyError: 'observation_mask'"),
        ("prove_nan", "the loss is nan"),
        ("prove_constant", "the gradient is zero"),
    ],
)
def test_a_loss_that_does_not_even_run_is_a_finding(name, message):
    found = proof(policy_loss=name)
    assert not found.passed
    assert message in failures(found)["runs"]


@policy_loss("prove_asks_the_reference", masks=("final_response_mask",))
def asks_the_reference(inputs: LossInputs) -> TokenLosses:
    drift = inputs.log_probs_R - inputs.ref_log_probs_R
    return TokenLosses(loss_R=-inputs.advantages_R * (inputs.log_probs_R - 0.1 * drift))


def test_a_loss_that_asks_a_reference_there_is_none_of_is_a_finding():
    """It passed, and the first step of the run ended with a TypeError."""
    found = proof(policy_loss="prove_asks_the_reference")
    assert "TypeError" in failures(found)["runs"]
    assert proof(policy_loss="prove_asks_the_reference", kl_coef=0.1).passed


def test_an_unknown_loss_is_a_mistake_in_the_config():
    with pytest.raises(ConfigError, match=r"prove_nothing"):
        proof(policy_loss="prove_nothing")


@pytest.mark.parametrize(
    ("package", "key", "name"),
    [(losses, "policy_loss", "mine"), (estimators, "advantage_estimator", "median_baseline")],
)
def test_the_example_of_the_readme_passes(tmp_path, package, key, name):
    readme = Path(package.__file__).parent / "README.md"
    (block,) = re.findall(r"(?:^    .*\n|^\n)+", readme.read_text().split("one's own\n")[1], re.M)[
        :1
    ]
    (tmp_path / "readme.py").write_text(textwrap.dedent(block))
    section = AlgorithmSection(**{key: f"readme.py:{name}"}).resolved(horizon=32)
    found = prove(section, base=tmp_path, sizes=SIZES)
    assert found.passed, failures(found)
