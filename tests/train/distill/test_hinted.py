"""Rows under another prompt: response positions, ids and masks stay exactly as they are."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from agentrl.batch.packing import padding_micro_batch, tokens_of_path
from agentrl.batch.records import IntArray, MicroBatch, RowKey
from agentrl.errors import TrainError
from agentrl.train.distill.hinted import with_prompts
from agentrl.train.distill.teacher_model import TRAINED, TeacherModel
from agentrl.train.frozen_policy import FrozenPolicy
from tests.train.tiny_llama import VOCABULARY, make_groups, make_step, tiny_model


def prompts_for(micros: tuple[MicroBatch, ...], *, seed: int = 0) -> dict[RowKey, IntArray]:
    """Random prompts of other lengths."""
    rng = random.Random(seed)
    return {
        key: np.array([rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, 12))])
        for micro in micros
        for key in micro.rows
    }


def step_micros(*, shared: bool) -> tuple[MicroBatch, ...]:
    return make_step(make_groups(), prefix_sharing=shared).updates[0].micro_batches


@pytest.mark.parametrize("shared", [False, True])
def test_only_the_prompts_change(shared: bool) -> None:
    """Fails if a row is cut, shifted, or exchanged with another of its micro-batch."""
    micros = step_micros(shared=shared)
    prompts = prompts_for(micros)
    for micro in micros:
        found = with_prompts(micro, prompts)
        assert found.rows == micro.rows
        for name in ("row_R", "target_R", "mask_R", "sampled_R"):
            assert np.array_equal(getattr(found, name), getattr(micro, name)), name
        assert np.array_equal(found.temperature_N, micro.temperature_N)
        for index, key in enumerate(found.rows):
            ids = found.input_ids_T[tokens_of_path(found, int(found.segment_N[index]))]
            own = micro.target_R[micro.row_R == index]
            assert ids.tolist() == [*prompts[key].tolist(), *own.tolist()]


def test_each_token_is_read_after_the_hint_and_what_came_before_it() -> None:
    """Against the library's own pass over hint, prompt and response. Fails by one position."""
    micros = step_micros(shared=True)
    prompts = prompts_for(micros, seed=1)
    model = tiny_model(seed=2)
    teacher = TeacherModel(
        FrozenPolicy(model, mask_keys=TRAINED), top_k=3, vocabulary=VOCABULARY, hinted=True
    )
    found = teacher.ask(micros, prompts=prompts)
    rows = {row.rollout_id: row for group in make_groups() for row in group.trajectories}
    for key, prompt in prompts.items():
        row = rows[key.rollout_id]
        count = len(found[key].sampled_R)
        ids = [*prompt.tolist(), *row.response_ids[:count]]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1]
        table = torch.log_softmax(logits / row.temperature, -1)
        for place in np.flatnonzero(row.response_mask[:count]).tolist():
            want = float(table[place, row.response_ids[place]])
            assert found[key].sampled_R[place] == pytest.approx(want, abs=1e-12)
            best = table[place].topk(3)
            assert found[key].ids_RK[place].tolist() == best.indices.tolist()
            assert np.allclose(found[key].log_probs_RK[place], best.values, rtol=0, atol=1e-12)


def test_padding_stays_padding() -> None:
    padding = padding_micro_batch()
    assert with_prompts(padding, {}) is padding


def test_a_row_without_a_hint_is_refused() -> None:
    """Fails if such a row is read under its own prompt, where policy and teacher agree."""
    micros = step_micros(shared=False)
    prompts = prompts_for(micros)
    lost = micros[0].rows[0]
    del prompts[lost]
    with pytest.raises(TrainError, match=r"has no prompt with a hint"):
        with_prompts(micros[0], prompts)
    model = FrozenPolicy(tiny_model(), mask_keys=TRAINED)
    teacher = TeacherModel(model, top_k=0, vocabulary=VOCABULARY, hinted=True)
    with pytest.raises(TrainError, match=r"the batch has no prompts with one"):
        teacher.ask(micros, prompts=None)
