"""Random examples, and the log-probabilities and scores of a model that was never there."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from agentrl.batch.examples import AnswerTokens, Example
from agentrl.batch.records import IntArray, MicroBatch, RowKey
from agentrl.batch.tensors import TensorBatch, to_tensors
from agentrl.train.model.logprobs import TokenLogProbs
from agentrl.train.prove.model import VOCABULARY

_LONGEST = 32
"""Most tokens of an answer."""


def random_examples(
    *, pairs: bool, seed: int, tokens: int = 0, verdicts: bool = False
) -> list[Example]:
    """Examples of different lengths, weights and margins, some with tokens that are not trained.

    Args:
        pairs: two answers each.
        seed: of everything.
        tokens: of all rows together; 0 is seven examples.
        verdicts: every second one is desirable and the others are not.
    """
    rng, made, size = random.Random(seed), list[Example](), 0
    while size < tokens or len(made) < 7:
        prompt = tuple(rng.choices(range(3, VOCABULARY), k=rng.randint(1, 5)))
        longest = _LONGEST if tokens else 8
        answers = tuple(_answer(rng, rng.randint(1, longest)) for _ in range(1 + pairs))
        if pairs and answers[0] == answers[1]:
            continue
        size += sum(len(prompt) + len(answer.ids) for answer in answers)
        made.append(
            Example(
                id=f"e{len(made)}",
                prompt_ids=prompt,
                answers=answers,
                weight=rng.choice([1.0, 0.5, 2.0]),
                margin=rng.uniform(0.0, 2.0),
                label_probability=rng.uniform(0.6, 1.0),
                desirable=len(made) % 2 == 0 if verdicts else None,
            )
        )
    return made


def _answer(rng: random.Random, length: int) -> AnswerTokens:
    """The environment may speak first, in the middle and last."""
    mask = [1] * length
    if length > 3:
        mask[0], mask[length // 2] = rng.randint(0, 1), 0
        mask[-1] = rng.randint(0, 1)
        mask[1] = 1
    ids = tuple(rng.choices(range(3, VOCABULARY), k=length))
    return AnswerTokens(ids=ids, mask=tuple(mask))


class TablePasses:
    """`ModelPasses` that look numbers up in a table, whose gradient is the slope at each number."""

    def __init__(self, answers: Mapping[RowKey, AnswerTokens], *, outputs: int, seed: int) -> None:
        """Draw a table.

        Args:
            answers: have a number for each token and for the whole.
            outputs: O, scores of an answer.
            seed: of the numbers.
        """
        rng, size, rows = np.random.default_rng(seed), 0, 0
        self._answers = answers
        self._starts: dict[RowKey, tuple[int, int]] = {}
        for key, answer in answers.items():
            self._starts[key] = (size, rows)
            size, rows = size + len(answer.ids), rows + 1
        self.log_probs_N = nn.Parameter(torch.as_tensor(-rng.uniform(0.1, 3.0, size)))
        """[N] Log-probability of each token of the answers."""
        self.scores_MO = nn.Parameter(torch.as_tensor(rng.normal(size=(rows, outputs))))
        """[M, O] Scores of each answer."""
        self._micro: MicroBatch | None = None

    def copy(self) -> TablePasses:
        """The same numbers once more, to be changed."""
        return copy.deepcopy(self)

    def named_parameters(self) -> Mapping[str, nn.Parameter]:
        """Log-probabilities and scores, by name."""
        return {"log_probs": self.log_probs_N, "scores": self.scores_MO}

    def to_tensors(self, micro: MicroBatch) -> TensorBatch:
        """`to_tensors` as in `ModelPasses.to_tensors`."""
        self._micro = micro
        return to_tensors(micro, device=torch.device("cpu"), dtype=torch.float64)

    def log_probs(self, batch: TensorBatch, *, loss_of: object = None) -> TokenLogProbs:
        """Find the tokens in the table."""
        assert self._micro is not None
        starts = np.array([self._starts[key][0] for key in self._micro.rows], dtype=np.int64)
        at_R = torch.as_tensor(starts[self._micro.row_R] + _offsets(self._micro))
        zeros_R = torch.zeros(len(at_R), dtype=torch.float64) + 0.0 * self.log_probs_N.sum()
        found_R = zeros_R.index_put((batch.index_A,), self.log_probs_N[at_R[batch.index_A]])
        return TokenLogProbs(log_probs_R=found_R, entropy_R=-found_R.detach())

    def values(self, batch: TensorBatch) -> Tensor:
        """[R] or [R, O] Find the answers in the table."""
        assert self._micro is not None
        rows = [self._starts[key][1] for key in self._micro.rows]
        found_RO = self.scores_MO[torch.tensor(rows, dtype=torch.int64)]
        return found_RO[:, 0] if found_RO.shape[1] == 1 else found_RO

    def backward(self, loss: Tensor) -> None:
        """`backward` as in `ModelPasses.backward`."""
        loss.backward()

    @torch.no_grad()
    def sums(self) -> dict[RowKey, float]:
        """Summed log-probability of the trained tokens of each answer."""
        found: dict[RowKey, float] = {}
        for key, answer in self._answers.items():
            start = self._starts[key][0]
            own = self.log_probs_N[start : start + len(answer.mask)]
            found[key] = float(own[torch.tensor(answer.mask, dtype=torch.bool)].sum())
        return found


def _offsets(micro: MicroBatch) -> IntArray:
    """[R] Index of each response position in its row."""
    count = len(micro.row_R)
    first = np.searchsorted(micro.row_R, np.arange(len(micro.rows)))
    return np.arange(count, dtype=np.int64) - first[micro.row_R]
