"""`agentrl prove` on fits: it passes what is right and says where what is wrong breaks."""

from __future__ import annotations

import re

import pytest
import torch

from agentrl.config.fit import DpoObjective, FitObjective, RewardObjective, SftObjective
from agentrl.errors import ConfigError
from agentrl.fit.losses.pair_losses import PairInputs, sigmoid
from agentrl.fit.losses.pair_registry import pair_loss
from agentrl.fit.prove import prove_fit
from agentrl.train.prove import Proof
from agentrl.types.finding import Status

pytestmark = pytest.mark.slow


def proof(objective: FitObjective) -> Proof:
    return prove_fit(objective, micro_batch_tokens=1024)


def own(name: str) -> Proof:
    return proof(DpoObjective(loss=name))


def failures(found: Proof, status: Status = Status.FAIL) -> dict[str, str]:
    return {check.name: check.detail for check in found.checks if check.status is status}


OBJECTIVES = {
    **{mode: SftObjective(loss_agg_mode=mode) for mode in
       ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")},
    **{loss: DpoObjective(loss=loss) for loss in
       ("sigmoid", "robust", "ipo", "hinge", "simpo", "orpo")},
    "smoothed": DpoObjective(label_smoothing=0.2, nll_coef=0.3, length_normalized=True),
    "robust, noisy": DpoObjective(loss="robust", label_smoothing=0.2),
    "kto": DpoObjective(loss="kto", beta=0.4, desirable_weight=1.5, undesirable_weight=0.75),
    "no reference": DpoObjective(reference="none"),
    "bt": RewardObjective(),
    "purm": RewardObjective(loss="purm", bsr_coef=0.2),
    "center_set": RewardObjective.model_validate(
        {"center_set_coef": 0.3, "center_data": {"source": "none"}, "bsr_coef": 0.2}
    ),
    "everything": RewardObjective(margin_scale=0.7, center_coef=0.05, bsr_coef=0.4),
    "heads": RewardObjective(
        ensemble=3, ensemble_mode="heads", margin_scale=0.7, center_coef=0.05, bsr_coef=0.4
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_passes(name: str) -> None:
    found = proof(OBJECTIVES[name])
    assert not failures(found)
    assert not failures(found, Status.WARN)
    errors = [check.error for check in found.checks if check.error is not None]
    assert len(errors) == 9
    assert max(errors) < 1e-12


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_examples_pass_too(seed: int) -> None:
    for objective in (
        SftObjective(), DpoObjective(), DpoObjective(loss="kto"), RewardObjective(bsr_coef=0.4)
    ):  # fmt: skip
        assert not failures(prove_fit(objective, seed=seed, micro_batch_tokens=1024))


@pair_loss("prove_local_mean")
def local_mean(inputs: PairInputs) -> torch.Tensor:
    return sigmoid(inputs) / len(inputs.chosen_P)


@pair_loss("prove_baseline")
def baseline(inputs: PairInputs) -> torch.Tensor:
    """Compares a pair with the others that happen to be there."""
    h_P = inputs.h_P
    return -torch.nn.functional.logsigmoid(0.1 * (h_P - h_P.detach().mean()))


@pair_loss("prove_counts_padding")
def longest(inputs: PairInputs) -> torch.Tensor:
    """Divides by the longest answer of the micro-batch, as a loss over padded rows does."""
    return sigmoid(inputs) / inputs.chosen_tokens_P.max()


@pytest.mark.parametrize("name", ["prove_local_mean", "prove_baseline", "prove_counts_padding"])
def test_a_loss_of_its_own_micro_batch_fails_and_is_located(name: str) -> None:
    broken = failures(own(name))
    assert {"smallest micro-batches", "2 ranks", "micro-batches to 1024 tokens"} <= set(broken)
    # Packed as the reference is, there is nothing to see.
    assert "shared prefixes" not in broken
    assert "another order, whole" not in broken
    assert " instead of " in broken["smallest micro-batches"]
    assert re.search(r"e\d/[01] at \d+ \(", broken["smallest micro-batches"])


@pair_loss("prove_order")
def order(inputs: PairInputs) -> torch.Tensor:
    """Weighs the first pair most."""
    loss_P = sigmoid(inputs)
    return loss_P / torch.arange(1, len(loss_P) + 1)


def test_a_loss_that_depends_on_the_order_fails() -> None:
    assert {"another order, whole", "smallest micro-batches"} <= set(failures(own("prove_order")))


@pair_loss("prove_turned")
def turned(inputs: PairInputs) -> torch.Tensor:
    return -torch.nn.functional.logsigmoid(-0.1 * inputs.h_P)


@pair_loss("prove_rejected_alone", needs_reference=False)
def rejected_alone(inputs: PairInputs) -> torch.Tensor:
    """Raises what was rejected."""
    return -inputs.rejected_P


@pytest.mark.parametrize("name", ["prove_turned", "prove_rejected_alone"])
def test_a_turned_sign_fails_in_its_direction_alone(name: str) -> None:
    broken = failures(own(name))
    assert set(broken) == {"direction"}
    assert "worse instead of better than the rejected one" in broken["direction"]


@pair_loss("prove_detached")
def detached(inputs: PairInputs) -> torch.Tensor:
    """Weighs by a probability without its gradient."""
    return inputs.mean_chosen_P.detach().exp() * sigmoid(inputs)


def test_a_factor_without_gradient_is_noted() -> None:
    found = own("prove_detached")
    assert found.passed
    assert "kept out of the gradient" in failures(found, Status.WARN)["descent"]


class _Negated(torch.autograd.Function):
    """The gradient of minus what it returns."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        return -grad


@pair_loss("prove_false_gradient")
def false_gradient(inputs: PairInputs) -> torch.Tensor:
    return _Negated.apply(sigmoid(inputs))


def test_a_gradient_that_is_not_the_loss_fails() -> None:
    assert {"descent", "direction"} == set(failures(own("prove_false_gradient")))


@pair_loss("prove_large_only")
def large_only(inputs: PairInputs) -> torch.Tensor:
    """Right, but for many pairs at once."""
    loss_P = sigmoid(inputs)
    return loss_P if len(loss_P) < 40 else loss_P / 2


def test_a_fault_of_large_micro_batches_is_found() -> None:
    assert set(failures(own("prove_large_only"))) == {"micro-batches to 1024 tokens"}


@pair_loss("prove_float32")
def narrow(inputs: PairInputs) -> torch.Tensor:
    return -torch.nn.functional.logsigmoid(0.1 * inputs.h_P.float())


def test_a_loss_in_float32_is_compared_in_float32() -> None:
    found = own("prove_float32")
    assert found.passed
    assert "computed in float32" in found.checks[0].detail


@pair_loss("prove_forgets_reference", needs_reference=False)
def forgets_reference(inputs: PairInputs) -> torch.Tensor:
    assert inputs.ref_chosen_P is not None, "there is no reference"
    return inputs.chosen_P - inputs.ref_chosen_P


@pair_loss("prove_nan")
def nan(inputs: PairInputs) -> torch.Tensor:
    return (inputs.h_P - inputs.h_P.detach()).sqrt()


@pytest.mark.parametrize(
    ("name", "text"),
    [("prove_forgets_reference", "there is no reference"), ("prove_nan", "not finite")],
)
def test_a_loss_that_does_not_run_is_one_finding(name: str, text: str) -> None:
    (check,) = own(name).checks
    assert check.status is Status.FAIL
    assert text in check.detail


def test_a_loss_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="did you mean 'sigmoid'"):
        own("sigmod")
