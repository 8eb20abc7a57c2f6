"""Pair losses by name, and pair losses of one's own: what they may return."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest
import torch

from agentrl.config.fit import DpoObjective
from agentrl.errors import ConfigError, TrainError
from agentrl.fit.losses import pair_losses
from agentrl.fit.losses.pair_losses import PairInputs
from agentrl.fit.losses.pair_registry import (
    PAIR_LOSSES,
    PairLossSpec,
    find_pair_loss,
    pair_loss,
    pair_losses_of,
)


def inputs(**keys) -> PairInputs:
    return PairInputs(
        chosen_P=torch.tensor([-2.0, -3.0], requires_grad=True),
        rejected_P=torch.tensor([-4.0, -1.0], requires_grad=True),
        ref_chosen_P=torch.tensor([-2.5, -2.5]),
        ref_rejected_P=torch.tensor([-2.5, -2.5]),
        chosen_tokens_P=torch.tensor([2.0, 3.0]),
        rejected_tokens_P=torch.tensor([4.0, 1.0]),
        objective=DpoObjective(**keys),
    )


@pytest.mark.parametrize(
    ("name", "needs_reference"),
    [
        ("sigmoid", True),
        ("robust", True),
        ("ipo", True),
        ("hinge", True),
        ("simpo", False),
        ("orpo", False),
    ],
)
def test_built_in_losses(name, needs_reference):
    spec = find_pair_loss(name)
    assert spec.needs_reference is needs_reference
    assert spec.function is getattr(pair_losses, name)
    assert torch.equal(pair_losses_of(spec, inputs()), spec.function(inputs()))


def test_unknown_names_are_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"objective\.loss.*sigmoid") as caught:
        find_pair_loss("sigmoidal")
    assert "a pair loss of your own" in str(caught.value)
    with pytest.raises(ConfigError, match="not callable"):
        find_pair_loss("math:pi")


def test_an_import_string_with_and_without_the_decorator(tmp_path):
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
            from agentrl.fit.losses.pair_registry import pair_loss

            @pair_loss("test_of_file", needs_reference=False)
            def declared(inputs):
                return inputs.rejected_P - inputs.chosen_P

            def bare(inputs):
                return -inputs.h_P
            """
        )
    )
    declared = find_pair_loss("mine.py:declared", tmp_path)
    assert (declared.name, declared.needs_reference) == ("test_of_file", False)
    assert pair_losses_of(declared, inputs()).tolist() == [-2.0, 2.0]
    bare = find_pair_loss("mine.py:bare", base=tmp_path)
    assert (bare.name, bare.needs_reference) == ("mine.py:bare", True)
    assert find_pair_loss("mine.py:bare") is bare


def test_a_name_belongs_to_one_function():
    with pytest.raises(ConfigError, match="'sigmoid' is agentrl"):
        pair_loss("sigmoid")(lambda inputs: -inputs.h_P)
    assert find_pair_loss("sigmoid").function is pair_losses.sigmoid
    assert list(PAIR_LOSSES).count("sigmoid") == 1


def spec_of(function) -> PairLossSpec:
    return PairLossSpec(name="mine", function=function)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda inputs: inputs.h_P.mean(), r"returned shape \[\], .* each of the 2 pairs"),
        (lambda inputs: inputs.h_P[:, None], r"returned shape \[2, 1\]"),
        (lambda inputs: inputs.h_P[:1], r"returned shape \[1\]"),
        (lambda inputs: None, "returned NoneType, expected a tensor"),
        (lambda inputs: np.zeros(2), "returned ndarray"),
        (lambda inputs: inputs.h_P > 0, r"returned torch\.bool"),
        (lambda inputs: inputs.h_P.detach(), "returned losses without a gradient"),
        (lambda inputs: 1 // 0, "raised ZeroDivisionError"),
    ],
)
def test_results_that_cannot_be_summed_are_refused(function, message):
    with pytest.raises(TrainError, match=f"pair loss 'mine' {message}"):
        pair_losses_of(spec_of(function), inputs())


def test_without_gradients_none_is_asked_for():
    """An evaluation computes the same losses under no_grad."""
    with torch.no_grad():
        assert pair_losses_of(spec_of(lambda inputs: -inputs.h_P), inputs()).tolist() == [-2.0, 2.0]


def test_errors_of_a_loss_keep_their_own_message():
    def refuses(inputs: PairInputs) -> torch.Tensor:
        raise TrainError("no margin")

    with pytest.raises(TrainError, match=r"^no margin$"):
        pair_losses_of(spec_of(refuses), inputs())
