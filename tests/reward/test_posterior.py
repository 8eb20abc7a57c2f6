"""The posterior of a reward model's head, against autograd, a closed form and broken files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.errors import DataError
from agentrl.reward.posterior import POSTERIOR_FILE, HeadPosterior, PosteriorFit


def pairs(count: int = 40, width: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, width)), rng.normal(size=(count, width))


def made(weight: np.ndarray, chosen: np.ndarray, rejected: np.ndarray) -> HeadPosterior:
    fit = PosteriorFit(weight)
    fit.add(chosen[:7], rejected[:7])
    fit.add(chosen[7:], rejected[7:])
    return fit.posterior()


def test_the_covariance_is_that_of_the_hessian_of_the_loss() -> None:
    """Fails with another curvature, or if pairs that come in parts are counted otherwise."""
    chosen, rejected = pairs()
    weight = np.linspace(-1.0, 1.5, 5)
    found = made(weight, chosen, rejected)

    def loss(w: torch.Tensor) -> torch.Tensor:
        margins = torch.from_numpy(chosen - rejected) @ w
        prior = 0.5 * found.prior * (w**2).sum()
        return prior - torch.nn.functional.logsigmoid(margins).sum()

    found_hessian = torch.autograd.functional.hessian(loss, torch.from_numpy(weight))
    hessian = np.asarray(found_hessian)
    assert np.allclose(np.linalg.inv(hessian), found.covariance_EE, rtol=1e-9)
    answer = np.full((1, 5), 0.3)
    apart = answer[0] - np.concatenate([chosen, rejected]).mean(axis=0)
    wanted = np.sqrt(apart @ np.linalg.inv(hessian) @ apart)
    assert found.deviations(answer) == pytest.approx([wanted], rel=1e-9)


def test_the_prior_has_the_most_evidence() -> None:
    """Fails if the fixed point is not a maximum of the evidence of Laplace's approximation."""
    chosen, rejected = pairs(200)
    weight = np.linspace(-0.5, 0.7, 5)
    found = made(weight, chosen, rejected)
    apart = chosen - rejected
    p = 1 / (1 + np.exp(-apart @ weight))
    hessian = (apart * (p * (1 - p))[:, None]).T @ apart

    def evidence(prior: float) -> float:
        sign, size = np.linalg.slogdet(hessian + prior * np.eye(5))
        assert sign == 1
        return 0.5 * (5 * np.log(prior) - prior * weight @ weight - size)

    assert evidence(found.prior) > max(evidence(found.prior * x) for x in (0.9, 1.1))
    assert 0 < found.decided < 5


def test_a_direction_without_pairs_is_unsure() -> None:
    chosen, rejected = pairs()
    chosen[:, 4] = rejected[:, 4] = 0.0
    found = made(np.array([1.0, -1.0, 0.5, 0.2, 0.0]), chosen, rejected)
    usual, strange = found.deviations(np.stack([chosen[0], chosen[0] + 3 * np.eye(5)[4]]))
    assert strange > 1.5 * usual
    assert np.isnan(found.deviations(np.full((1, 5), np.nan))).all()


def test_it_comes_back_from_its_file(tmp_path: Path) -> None:
    found = made(np.ones(5), *pairs())
    assert found.save(tmp_path) == tmp_path / POSTERIOR_FILE
    again = HeadPosterior.load(tmp_path)
    assert np.array_equal(again.covariance_EE, found.covariance_EE)
    assert np.array_equal(again.mean_E, found.mean_E)
    assert np.array_equal(again.weight_E, np.ones(5))
    assert (again.prior, again.decided, again.pairs) == (found.prior, found.decided, 40)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b'{"mean": 1}'])
def test_a_broken_file_is_said(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match=r"does not exist.*agentrl rm posterior"):
        HeadPosterior.load(tmp_path)
    (tmp_path / POSTERIOR_FILE).write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        HeadPosterior.load(tmp_path)


def test_a_file_of_other_shapes_is_said(tmp_path: Path) -> None:
    numbers: dict[str, Any] = {"prior": 1.0, "decided": 1.0, "pairs": 3}
    numbers["weight"] = np.ones(2)
    np.savez(tmp_path / POSTERIOR_FILE, mean=np.ones(2), covariance=np.ones((3, 3)), **numbers)
    with pytest.raises(DataError, match=r"covariance of shape \(3, 3\)"):
        HeadPosterior.load(tmp_path)
    broken = np.full((2, 2), np.inf)
    np.savez(tmp_path / POSTERIOR_FILE, mean=np.ones(2), covariance=broken, **numbers)
    with pytest.raises(DataError, match="not finite"):
        HeadPosterior.load(tmp_path)


def test_what_decides_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="all 0"):
        PosteriorFit(np.zeros(3))
    with pytest.raises(DataError, match="not finite"):
        PosteriorFit(np.array([1.0, np.nan]))
    fit = PosteriorFit(np.ones(2))
    with pytest.raises(DataError, match="0 pairs decide nothing"):
        fit.posterior()
    with pytest.raises(DataError, match="numbers that are not finite"):
        fit.add([[np.inf, 0.0]], [[0.0, 0.0]])
    fit.add(np.ones((4, 2)), np.ones((4, 2)))
    with pytest.raises(DataError, match="4 pairs decide nothing"):
        fit.posterior()
