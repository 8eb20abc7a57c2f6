"""A loss of one's own: what it is given, what it may return, and what it is refused."""

from __future__ import annotations

import textwrap

import pytest
import torch

from agentrl.batch.records import LossNeeds, MaskCounts
from agentrl.errors import ConfigError, TrainError
from agentrl.train.losses import LossInputs, TokenLosses, find_loss, needs_of, policy_loss
from tests.train.losses.loss_parts import evaluate, section

SAMPLED, TRAINED, SEEN = "response_mask", "final_response_mask", "observation_mask"
HALF = {key: MaskCounts(batch_num_tokens=8, global_valid_samples=4) for key in (SAMPLED, SEEN)}

# Two rollouts; tokens 1 and 4 are the environment's, token 5 is sampled and too old to be trained.
TOKENS = {
    "now": [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0],
    "advantages": [1.0, 0.0, 1.0, -2.0, 0.0, -2.0],
    "mask": [True, False, True, True, False, False],
    "sampled": [True, False, True, True, False, True],
    "sequences": [0, 0, 0, 1, 1, 1],
    "weights": [0.5] * 6,
}


@policy_loss("test_world_model", masks=(SAMPLED, SEEN), zero_advantage_rows=True)
def world_model(inputs: LossInputs) -> TokenLosses:
    """REINFORCE, and the likelihood of what the environment says."""
    seen = inputs.aggregate(-inputs.log_probs_R, mask=SEEN, mode="token-mean")
    return TokenLosses(
        loss_R=-inputs.advantages_R * inputs.log_probs_R,
        total=0.1 * seen,
        metrics={
            "mine/seen@sum": seen,
            "mine/advantage": inputs.advantages_R,
            "mine/advantage_max@max": inputs.advantages_R,
            "mine/tokens@sum": inputs.batch_num_tokens[SEEN] / 4,
            "mine/samples@min": float(inputs.global_valid_samples[SEEN]),
        },
    )


def test_masks_counts_and_reductions():
    """-A lp at trained tokens times 1/2, plus 0.1/8 times the loss of the observed ones.

    Fails if the total is weighted once more (0.1/16), is divided by the two tokens at hand, or if
    an observed token falls to the mask of the policy term.
    """
    got = evaluate(section("test_world_model"), **TOKENS, counts=HALF)
    assert got.slopes == pytest.approx([-0.5, -0.1 / 8, -0.5, 1.0, -0.1 / 8, 0.0])
    assert got.loss == pytest.approx(0.5 * (1.0 + 3.0 - 8.0) + 0.1 * 7 / 8)
    metrics = {n: v for n, v in got.metrics.items() if n.startswith("mine/")}
    assert metrics == pytest.approx(
        {
            "mine/seen": 7 / 8,
            "mine/advantage": 0.0,
            "mine/advantage_max": 1.0,
            "mine/tokens": 2.0,
            "mine/samples": 4.0,
        }
    )


def test_what_it_declares_reaches_the_batch_stage():
    assert needs_of(section("test_world_model")) == LossNeeds(
        mask_keys=(SAMPLED, SEEN), zero_advantage_rows=True
    )


@policy_loss("test_looks", masks=(SAMPLED, TRAINED, SEEN))
def looks(inputs: LossInputs) -> TokenLosses:
    """Keeps what it was given."""
    SEEN_INPUTS.append(inputs)
    return TokenLosses(loss_R=inputs.log_probs_R)


SEEN_INPUTS: list[LossInputs] = []


def test_numbers_that_mean_nothing_are_zeros():
    nan = float("nan")
    evaluate(
        section("test_looks", kl_coef=0.1),
        **{**TOKENS, "advantages": [1.0, nan, 1.0, -2.0, nan, nan]},
        rollout=[-1.5, nan, -3.5, -4.5, nan, -6.5],
        ref=[-1.25] * 6,
        counts={**HALF, TRAINED: HALF[SAMPLED]},
    )
    inputs = SEEN_INPUTS.pop()
    assert inputs.advantages_R.tolist() == [1.0, 0.0, 1.0, -2.0, 0.0, 0.0]
    assert inputs.rollout_log_probs_R.tolist() == [-1.5, 0.0, -3.5, -4.5, 0.0, -6.5]
    assert inputs.log_probs_R.tolist() == TOKENS["now"]
    assert inputs.ref_log_probs_R is not None
    assert inputs.masks[SAMPLED].tolist() == TOKENS["sampled"]
    assert inputs.masks[TRAINED].tolist() == TOKENS["mask"]
    assert inputs.masks[SEEN].tolist() == [not sampled for sampled in TOKENS["sampled"]]
    assert not inputs.entropy_R.requires_grad


@policy_loss("test_trained_only", masks=(TRAINED,), whole_rollouts=True)
def trained_only(inputs: LossInputs) -> TokenLosses:
    """Keeps what it was given; its loss is 0 / 0 outside of the trained tokens."""
    SEEN_INPUTS.append(inputs)
    return TokenLosses(
        loss_R=inputs.log_probs_R * inputs.advantages_R / inputs.advantages_R,
        metrics={"mine/mean@max": inputs.sequence_mean(inputs.log_probs_R + 10.0)},
    )


def test_outside_of_what_it_declares_a_loss_sees_zeros_and_is_not_heard():
    """Fails if 0 / 0 there reaches the sum, or if a mean over rollouts takes such tokens along."""
    got = evaluate(
        section("test_trained_only"),
        **TOKENS,
        old=[-1.5, float("nan"), -3.5, -4.5, float("inf"), 7.0],
        ref=[-1.5, float("nan"), -3.5, -4.5, float("inf"), 7.0],
        rollout=[-1.5, float("nan"), -3.5, -4.5, float("inf"), 7.0],
        entropy=[1.5, float("nan"), 3.5, 4.5, float("inf"), 7.0],
    )
    inputs = SEEN_INPUTS.pop()
    assert inputs.log_probs_R.tolist() == [-1.0, 0.0, -3.0, -4.0, 0.0, 0.0]
    assert inputs.ref_log_probs_R is not None
    for values in (inputs.old_log_probs_R, inputs.rollout_log_probs_R, inputs.ref_log_probs_R):
        assert values.tolist() == [-1.5, 0.0, -3.5, -4.5, 0.0, 0.0]
    assert inputs.entropy_R.tolist() == [1.5, 0.0, 3.5, 4.5, 0.0, 0.0]
    assert got.slopes == [0.5, 0.0, 0.5, 0.5, 0.0, 0.0]
    assert got.loss == pytest.approx(-4.0)
    assert got.metrics["mine/mean"] == pytest.approx(8.0)


def aggregated(mode, *, mask=SAMPLED, whole=True, counts=HALF):
    """The slope of each token under an aggregation of lp over a mask."""
    name = f"test_aggregate_{mode}_{mask}_{whole}"

    @policy_loss(name, masks=(SAMPLED, SEEN), whole_rollouts=whole)
    def loss(inputs: LossInputs) -> TokenLosses:
        return TokenLosses(total=inputs.aggregate(inputs.log_probs_R, mask=mask, mode=mode))

    return evaluate(section(name), **TOKENS, counts=counts).slopes


@pytest.mark.parametrize(
    ("mode", "each"),
    [
        ("token-mean", [1 / 8] * 4),
        ("seq-mean-token-mean", [1 / 8] * 4),  # two sampled tokens in each rollout, B = 4
        ("seq-mean-token-sum", [1 / 4] * 4),
        ("seq-mean-token-sum-norm", [1 / 32] * 4),  # B H = 4 * 8
    ],
)
def test_aggregations_divide_by_the_global_counts_of_their_mask(mode, each):
    # Fails with the tokens or rollouts at hand as a denominator, and if the stale one is left out.
    got = aggregated(mode)
    assert [got[index] for index in (0, 2, 3, 5)] == pytest.approx(each)
    assert [got[1], got[4]] == [0.0, 0.0]


def test_a_mean_over_a_rollout_needs_all_of_it():
    with pytest.raises(TrainError, match=r"whole_rollouts=True"):
        aggregated("seq-mean-token-mean", whole=False)


def test_an_undeclared_mask_is_refused():
    with pytest.raises(TrainError, match=r"'final_response_mask'.*declares.*observation_mask"):
        aggregated("token-mean", mask=TRAINED)


def test_a_mask_without_a_token_is_no_denominator():
    none = {key: MaskCounts(batch_num_tokens=0, global_valid_samples=0) for key in HALF}
    with pytest.raises(TrainError, match=r"covers 0 tokens of 0 rollouts"):
        aggregated("seq-mean-token-sum", counts=none)


@policy_loss("test_scaled", apply_loss_scale=False)
def scaled(inputs: LossInputs) -> TokenLosses:
    """Undoes the averaging of the backend itself."""
    loss = inputs.aggregate(-inputs.advantages_R * inputs.log_probs_R, mask=SAMPLED)
    return TokenLosses(total=inputs.loss_scale * loss)


def test_a_loss_that_scales_itself_is_not_scaled_again():
    """The backend multiplies by 4 what it is given, so that has to be the unscaled loss.

    Fails (four times that) if the objective hands the scaled one on. A penalty stays as it is.
    """
    algorithm = section("test_scaled", loss_agg_mode="token-mean", kl_coef=0.5, kl_estimator="k2")
    got = evaluate(
        algorithm, **TOKENS, ref=[-1.0 - 1.0, 0, -3.0, -4.0, 0, 0], counts=HALF, loss_factor=4.0
    )
    want = [-1 / 8 + 0.5 * 0.5, 0.0, -1 / 8, 2 / 8, 0.0, 0.0]
    assert got.slopes == pytest.approx(want)


def returning(name, value, **declared):
    @policy_loss(name, **declared)
    def loss(inputs: LossInputs) -> TokenLosses:
        return value(inputs)

    evaluate(section(name), **TOKENS, counts=HALF)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("test_bare", lambda i: i.log_probs_R, r"'test_bare' returned Tensor, expected TokenLoss"),
        ("test_nothing", lambda i: TokenLosses(), r"neither loss_R nor total"),
        ("test_summed", lambda i: TokenLosses(loss_R=i.log_probs_R.sum()), r"loss_R of shape \[\]"),
        ("test_wide", lambda i: TokenLosses(total=i.log_probs_R), r"total of shape \[6\].*scalar"),
        (
            "test_mark",
            lambda i: TokenLosses(loss_R=i.log_probs_R, metrics={"x@median": 1.0}),
            r"'x@median'.*@mean, @sum, @max, @min",
        ),
        (
            "test_shape",
            lambda i: TokenLosses(loss_R=i.log_probs_R, metrics={"x": torch.ones(2)}),
            r"metric 'x' has shape \[2\].*6 response positions",
        ),
    ],
)
def test_what_cannot_be_aggregated_is_refused(name, value, message):
    with pytest.raises(TrainError, match=message):
        returning(name, value)


def test_a_scaled_loss_may_not_have_token_losses():
    with pytest.raises(TrainError, match=r"apply_loss_scale=False.*`total`"):
        returning("test_both", lambda i: TokenLosses(loss_R=i.log_probs_R), apply_loss_scale=False)


def test_a_name_belongs_to_one_function():
    with pytest.raises(ConfigError, match=r"'ppo_clip' is agentrl\.train\.losses\.policy\.ppo_cl"):
        policy_loss("ppo_clip")(scaled)


def test_unknown_masks_are_refused_when_they_are_declared():
    with pytest.raises(ConfigError, match=r"'reponse_mask'.*response_mask"):
        policy_loss("test_typo", masks=("reponse_mask",))
    with pytest.raises(ConfigError, match=r"declares no mask"):
        policy_loss("test_none", masks=())


def test_import_strings_name_a_decorated_or_a_plain_function(tmp_path):
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
            from agentrl.train.losses import TokenLosses, policy_loss

            @policy_loss("test_from_file", masks=("observation_mask",))
            def declared(inputs):
                return TokenLosses(loss_R=inputs.log_probs_R)

            def plain(inputs):
                return TokenLosses(loss_R=inputs.log_probs_R)
            """
        )
    )
    declared, plain = section("mine.py:declared"), section("mine.py:plain")
    assert needs_of(declared, base=tmp_path).mask_keys == (SEEN,)
    assert needs_of(plain, base=tmp_path) == LossNeeds()
    # Whoever evaluates the loss does not know where the config lies.
    assert evaluate(declared, **TOKENS).slopes[0] == 0.5
    assert find_loss("test_from_file").name == "test_from_file"
    with pytest.raises(ConfigError, match=r"has no 'missing'"):
        needs_of(section("mine.py:missing"), base=tmp_path)


def test_a_padding_micro_batch_adds_nothing():
    for loss in ("ppo_clip", "gspo", "cispo", "tis_reinforce", "sapo"):
        got = evaluate(section(loss, is_correction_type="tis"), now=[], advantages=[])
        assert (got.loss, got.slopes, got.metrics) == (0.0, [], {})
