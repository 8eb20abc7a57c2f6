"""`agentrl prove` finds every planted fault, and passes losses written as peers write them."""

from __future__ import annotations

import re

import pytest
import torch

from agentrl.config.schema import AlgorithmSection
from agentrl.train.losses import LossInputs, TokenLosses, policy_loss
from agentrl.train.prove import ProbeSizes, Proof, prove
from agentrl.types.finding import Status

pytestmark = pytest.mark.slow

MASKS = ("response_mask", "observation_mask")
LARGE = "micro-batches to 2048 tokens"
TRAINED = ("final_response_mask",)


SMALL = ProbeSizes(micro_batch_tokens=1024, response_tokens=2048)


def proof(name: str, *, sizes: ProbeSizes = SMALL, **changes) -> Proof:
    algorithm = AlgorithmSection(policy_loss=name, **changes)
    return prove(algorithm.resolved(horizon=32), sizes=sizes)


def found(name: str, status: Status = Status.FAIL, **changes) -> dict[str, str]:
    return {c.name: c.detail for c in proof(name, **changes).checks if c.status is status}


def gain(inputs: LossInputs) -> torch.Tensor:
    ratio = inputs.log_ratio().clamp(-20, 20).exp()
    advantages = inputs.advantages_R
    return torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)


def local_mean_above(inputs: LossInputs, tokens: int) -> TokenLosses:
    """Divides by the micro-batch's own tokens, but only where it has many."""
    kept, own = inputs.trained(-gain(inputs)), int(inputs.mask_R.sum())
    if own > tokens:
        return TokenLosses(total=kept.sum() / own)
    return TokenLosses(total=inputs.aggregate(kept, mask="final_response_mask"))


@policy_loss("fault_flipped", masks=TRAINED)
def flipped(inputs):
    return TokenLosses(loss_R=gain(inputs))


@policy_loss("fault_flipped_below", masks=TRAINED)
def flipped_below(inputs):
    return TokenLosses(loss_R=-gain(inputs).abs())


@policy_loss("fault_flipped_above", masks=TRAINED)
def flipped_above(inputs):
    """The sign is right for a negative advantage only."""
    return TokenLosses(loss_R=gain(inputs).abs())


@policy_loss("fault_flipped_beside_a_term", masks=TRAINED, zero_advantage_rows=True)
def flipped_beside_a_term(inputs):
    """A supervised term hides the sign while advantages are small."""
    return TokenLosses(loss_R=gain(inputs) - 3.0 * inputs.log_probs_R)


@policy_loss("fault_flipped_when_many", masks=TRAINED)
def flipped_when_many(inputs):
    return TokenLosses(loss_R=(1.0 if int(inputs.mask_R.sum()) > 600 else -1.0) * gain(inputs))


@policy_loss("fault_flipped_when_long", masks=TRAINED)
def flipped_when_long(inputs):
    """Wrong in rollouts of over 1500 tokens, alike under every division."""
    own = torch.bincount(inputs.sequence_R[inputs.mask_R], minlength=inputs.num_sequences)
    sign = torch.where(own[inputs.sequence_R] > 1500, 1.0, -1.0)
    return TokenLosses(loss_R=sign * gain(inputs))


@policy_loss("fault_counts_sampled", masks=MASKS, zero_advantage_rows=True)
def counts_sampled(inputs):
    """All response tokens in the sum, sampled ones in the count (document 003, 6.2)."""
    everything = -inputs.log_probs_R * torch.where(inputs.mask_R, inputs.advantages_R, 1.0)
    return TokenLosses(total=everything.sum() / inputs.batch_num_tokens["response_mask"])


@policy_loss("fault_counts_rollouts", masks=MASKS, zero_advantage_rows=True)
def counts_rollouts(inputs):
    seen = torch.where(inputs.masks["observation_mask"], -inputs.log_probs_R, 0.0)
    policy = inputs.aggregate(-gain(inputs), mask="response_mask")
    return TokenLosses(total=policy + seen.sum() / inputs.global_valid_samples["response_mask"])


@policy_loss("fault_counts_environment", masks=MASKS)
def counts_environment(inputs):
    kept = inputs.trained(-gain(inputs)).sum()
    return TokenLosses(total=kept / inputs.batch_num_tokens["observation_mask"])


@policy_loss("fault_counts_both", masks=MASKS)
def counts_both(inputs):
    """Tokens of the environment in the count only."""
    return TokenLosses(
        total=inputs.trained(-gain(inputs)).sum() / sum(inputs.batch_num_tokens.values())
    )


@policy_loss("fault_local_above_512", masks=TRAINED)
def local_above_512(inputs):
    return local_mean_above(inputs, 512)


@policy_loss("fault_local_above_6000", masks=TRAINED)
def local_above_6000(inputs):
    return local_mean_above(inputs, 6000)


@policy_loss("fault_local_in_float32", masks=TRAINED)
def local_in_float32(inputs):
    kept = inputs.trained(-gain(inputs)).float()
    return TokenLosses(total=kept.sum() / inputs.mask_R.sum().clamp(min=1))


@policy_loss("fault_local_in_bfloat16", masks=TRAINED)
def local_in_bfloat16(inputs):
    kept = inputs.trained(-gain(inputs)).bfloat16()
    return TokenLosses(total=kept.sum() / inputs.mask_R.sum().clamp(min=1))


@policy_loss("fault_many_rows", masks=TRAINED)
def many_rows(inputs):
    """Rows after the 128th of a micro-batch are forgotten."""
    return TokenLosses(loss_R=torch.where(inputs.sequence_R < 128, -gain(inputs), 0.0))


@policy_loss("fault_long_rows", masks=TRAINED)
def long_rows(inputs):
    """Doubles what a part of a rollout of over 1000 tokens adds."""
    own = torch.bincount(inputs.sequence_R, minlength=inputs.num_sequences)
    return TokenLosses(loss_R=-gain(inputs) * torch.where(own > 1000, 2.0, 1.0)[inputs.sequence_R])


FAULTS = {
    "fault_flipped": "direction",
    "fault_flipped_below": "direction",
    "fault_flipped_above": "direction",
    "fault_flipped_beside_a_term": "direction",
    "fault_flipped_when_many": "direction, 4096 tokens",
    "fault_flipped_when_long": "direction, rollouts of 2048 tokens",
    "fault_counts_sampled": "masks of sum and count",
    "fault_counts_rollouts": "masks of sum and count",
    "fault_counts_environment": "masks of sum and count",
    "fault_counts_both": "masks of sum and count",
    "fault_local_above_512": LARGE,
    "fault_many_rows": LARGE,
    "fault_long_rows": "rollouts of 2048 tokens, split",
    "fault_local_in_float32": "2 ranks",
    "fault_local_in_bfloat16": "2 ranks",
}


@pytest.mark.parametrize(("name", "check"), FAULTS.items())
def test_a_planted_fault_is_found(name, check):
    assert check in found(name, loss_agg_mode="token-mean")


def test_sizes_follow_those_of_the_run():
    """What micro-batches of the run never reach cannot harm it."""
    larger = ProbeSizes(micro_batch_tokens=8192)
    assert "micro-batches to 16384 tokens" in found(
        "fault_local_above_6000", loss_agg_mode="token-mean", sizes=larger
    )
    assert not found("fault_local_above_6000", loss_agg_mode="token-mean")


def test_the_evidence_names_tokens_and_numbers():
    flipped = found("fault_flipped", loss_agg_mode="token-mean")["direction"]
    assert "a positive advantage lowers the log-probability" in flipped
    assert re.search(r"g\d/\d at \d+: slope \S+ at advantage", flipped)
    counted = found("fault_counts_sampled", loss_agg_mode="token-mean")["masks of sum and count"]
    assert "that are not under response_mask are divided by its count" in counted
    assert "here observation_mask" in counted
    local = found("fault_local_above_512", loss_agg_mode="token-mean")[LARGE]
    assert re.match(r"in micro-batches of \d+ tokens: \d+ of \d+ tokens", local)


@policy_loss("fault_slightly_local", masks=TRAINED)
def slightly_local(inputs):
    """Off by 1e-10 with every token of the micro-batch: float64 has the digits to show it."""
    share = 1.0 + 1e-10 * float(inputs.mask_R.sum())
    return TokenLosses(loss_R=-gain(inputs) * share)


def test_the_evidence_shows_digits_that_differ():
    broken = found("fault_slightly_local", loss_agg_mode="token-mean")["smallest micro-batches"]
    pairs = re.findall(r"\((\S+) instead of (\S+)\)", broken)
    assert pairs
    assert all(got != wanted for got, wanted in pairs)


def test_a_fault_below_the_digits_of_float32_passes_only_in_float32():
    @policy_loss("fault_slightly_local_float32", masks=TRAINED)
    def in_float32(inputs):
        return TokenLosses(loss_R=slightly_local(inputs).loss_R.float())

    assert not found("fault_slightly_local_float32", loss_agg_mode="token-mean")


@policy_loss("peer_float32", masks=TRAINED)
def float32(inputs):
    """As verl and TRL do: all in float32, masked by multiplication, clamped."""
    log_probs, advantages = inputs.log_probs_R.float(), inputs.advantages_R.float()
    ratio = torch.clamp(log_probs - inputs.old_log_probs_R.float(), min=-20.0, max=20.0).exp()
    losses1, losses2 = -advantages * ratio, -advantages * torch.clamp(ratio, 0.8, 1.28)
    return TokenLosses(loss_R=torch.maximum(losses1, losses2) * inputs.mask_R.float())


@policy_loss("peer_float32_total", masks=TRAINED, whole_rollouts=True)
def float32_total(inputs):
    loss = float32(inputs).loss_R
    return TokenLosses(total=inputs.aggregate(loss, mask="final_response_mask"))


@policy_loss("peer_float32_sequence", masks=TRAINED, whole_rollouts=True)
def float32_sequence(inputs):
    """A ratio of the sequence (GSPO, direct form) in float32."""
    ratio = inputs.sequence_mean(inputs.log_ratio().float()).exp()
    advantages = inputs.advantages_R.float()
    clipped = ratio.clamp(0.9997, 1.0004)
    return TokenLosses(loss_R=-torch.minimum(ratio * advantages, clipped * advantages))


@policy_loss("peer_bfloat16", masks=TRAINED)
def bfloat16(inputs):
    ratio = inputs.log_ratio().bfloat16().exp()
    return TokenLosses(loss_R=-ratio * inputs.advantages_R.bfloat16())


@policy_loss("peer_float16", masks=TRAINED)
def float16(inputs):
    ratio = inputs.log_ratio().half().exp()
    return TokenLosses(loss_R=-ratio * inputs.advantages_R.half())


@policy_loss("peer_autocast", masks=TRAINED)
def autocast(inputs):
    """An outer product in bfloat16 by autocast, as a loss with a small head would have one."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        advantages = (inputs.advantages_R.float()[:, None] @ torch.ones(1, 1))[:, 0]
        return TokenLosses(loss_R=-inputs.log_ratio().float().exp() * advantages)


@policy_loss("peer_masked_fill", masks=("response_mask",))
def masked_fill(inputs):
    """REINFORCE++ of OpenRLHF's kind: masked_fill instead of where, dual clip."""
    log_ratio = (inputs.log_probs_R - inputs.old_log_probs_R).masked_fill(~inputs.mask_R, 0.0)
    ratio = log_ratio.exp()
    advantages = inputs.advantages_R.masked_fill(~inputs.mask_R, 0.0)
    surr = torch.min(ratio * advantages, ratio.clamp(1 - 0.2, 1 + 0.27) * advantages)
    surr = torch.where(advantages < 0, torch.max(surr, 3.0 * advantages), surr)
    return TokenLosses(total=inputs.aggregate(-surr, mask="response_mask", mode="token-mean"))


@policy_loss("peer_cispo", masks=TRAINED)
def cispo(inputs):
    weight = inputs.log_ratio().detach().exp().clamp(max=5.0)
    return TokenLosses(loss_R=-(weight * inputs.advantages_R * inputs.log_probs_R))


@policy_loss("peer_positive_only", masks=TRAINED)
def positive_only(inputs):
    """Filtered behaviour cloning: a negative advantage changes nothing."""
    return TokenLosses(loss_R=-inputs.advantages_R.clamp(min=0.0) * inputs.log_probs_R)


@policy_loss("peer_world_model", masks=MASKS, zero_advantage_rows=True)
def world_model(inputs):
    nats = inputs.aggregate(-inputs.log_probs_R, mask="observation_mask", mode="token-mean")
    return TokenLosses(loss_R=-gain(inputs), total=0.1 * nats)


@policy_loss("peer_all_tokens", masks=MASKS, zero_advantage_rows=True)
def all_tokens(inputs):
    """All response tokens in the sum and all of them in the count."""
    count = sum(inputs.batch_num_tokens.values())
    policy = torch.where(inputs.mask_R, -gain(inputs), 0.0)
    visible = inputs.masks["response_mask"] | inputs.masks["observation_mask"]
    return TokenLosses(total=(policy - torch.where(visible, inputs.log_probs_R, 0.0)).sum() / count)


@policy_loss("peer_trust_region", masks=TRAINED)
def trust_region(inputs):
    """DPPO's mask beside a squared distance (prime-rl)."""
    apart = inputs.log_ratio()
    moved = apart.exp() - 1.0
    kept = ~(
        ((inputs.advantages_R > 0) & (moved > 0.2)) | ((inputs.advantages_R < 0) & (moved < -0.2))
    )
    policy = -apart.exp() * inputs.advantages_R
    return TokenLosses(loss_R=torch.where(kept, policy, 0.0) + 1e-3 * apart.square())  # fmt: skip


PEERS = [
    "peer_float32", "peer_float32_total", "peer_float32_sequence", "peer_bfloat16", "peer_float16",
    "peer_autocast", "peer_masked_fill", "peer_cispo", "peer_positive_only", "peer_world_model",
    "peer_all_tokens",
]  # fmt: skip


MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")


@pytest.mark.parametrize(
    ("name", "mode"), [(name, MODES[index % 3]) for index, name in enumerate(PEERS)]
)
def test_a_correct_loss_in_the_style_of_a_peer_passes(name, mode):
    assert not found(name, loss_agg_mode=mode)


def test_a_squared_distance_has_to_be_declared_and_passes_then():
    assert set(found("peer_trust_region")) == {"rows without advantage"}


@policy_loss("peer_supervised", masks=TRAINED, zero_advantage_rows=True)
def supervised(inputs):
    return TokenLosses(loss_R=-inputs.log_probs_R)


@policy_loss("peer_unlikelihood", masks=TRAINED, zero_advantage_rows=True)
def unlikelihood(inputs):
    return TokenLosses(loss_R=inputs.log_probs_R)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("peer_supervised", "it raises every sampled token, as a supervised loss does"),
        ("peer_unlikelihood", "it lowers the log-probability of every sampled token"),
        ("peer_positive_only", "a negative advantage changes nothing"),
    ],
)
def test_a_loss_without_a_direction_is_not_called_right(name, what):
    assert what in found(name, Status.WARN)["direction"]


def test_the_precision_is_said():
    (runs,) = [c for c in proof("peer_float32").checks if c.name == "runs"]
    assert runs.detail.endswith("computed in float32: up to 1.0e-05 counts as equal")
