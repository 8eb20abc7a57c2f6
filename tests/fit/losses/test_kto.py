"""KTO has the gradient of its formula over the whole update, and z0 is one number of all of it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from agentrl.batch.examples import Example, pair_update
from agentrl.batch.update_terms import mismatch_update, mismatches_of
from agentrl.config.fit import DpoObjective
from agentrl.errors import DataError, TrainError
from agentrl.fit.losses.fitter import Fitter
from agentrl.fit.losses.kto import KtoLoss
from tests.fit.losses.fit_examples import (
    answer,
    examples,
    fitter,
    gradient,
    plain_gradient,
    token_log_probs,
)
from tests.train.tiny_llama import relative_error, tiny_model

OBJECTIVE = DpoObjective(
    loss="kto", beta=0.4, desirable_weight=1.5, undesirable_weight=0.75
)  # fmt: skip
PACKINGS = [(64, True), (24, True), (64, False), (32, False), (400, True)]
LONGEST = 64


def verdicts(count: int = 6, *, seed: int = 0) -> list[Example]:
    made = examples(count, pairs=False, seed=seed)
    return [
        replace(e, desirable=index % 3 != 1, label_probability=None) for index, e in enumerate(made)
    ]


@torch.no_grad()
def loss_of(data, reference_model, objective=OBJECTIVE):
    known = {}
    for example in data:
        (key,) = pair_update([example], micro_batch_tokens=400).micro_batches[0].rows
        known[key] = float(token_log_probs(reference_model, example, 0).sum())
    for each in mismatches_of(data, longest=LONGEST):
        example = replace(each.prompt, answers=each.answered.answers)
        known[each.key] = float(token_log_probs(reference_model, example, 0).sum())
    return KtoLoss(objective, reference=known, examples={e.id: e for e in data})


def measured(data, *, budget=64, sharing=True):
    found = mismatches_of(data, longest=LONGEST)
    return mismatch_update(found, micro_batch_tokens=max(budget, 32), prefix_sharing=sharing)


def trl_style(model, reference, data):
    """The loss as TRL 1.16 writes it, one padded batch, but divided by all rows with weights."""

    def log_probs(policy, rows):
        width = max(len(e.prompt_ids) + len(e.answers[0].ids) for e in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.int64)
        trained = torch.zeros(len(rows), width, dtype=torch.bool)
        attended = torch.zeros(len(rows), width, dtype=torch.int64)
        for row, e in enumerate(rows):
            whole = [*e.prompt_ids, *e.answers[0].ids]
            ids[row, : len(whole)] = torch.tensor(whole)
            attended[row, : len(whole)] = 1
            trained[row, len(e.prompt_ids) : len(whole)] = torch.tensor(e.answers[0].mask) > 0
        logits = policy(ids, attention_mask=attended).logits[:, :-1]
        labels, kept = ids[:, 1:], trained[:, 1:]
        each = logits.log_softmax(-1).gather(2, labels[:, :, None]).squeeze(2)
        return torch.where(kept, each, 0.0).sum(1)

    rotated = [
        replace(e, answers=o.answers) for e, o in zip(data, [*data[1:], data[0]], strict=True)
    ]
    with torch.no_grad():
        kl = (log_probs(model, rotated) - log_probs(reference, rotated)).mean().clamp(min=0)
        reference_logps = log_probs(reference, data)
    logratios = log_probs(model, data) - reference_logps
    good = torch.tensor([e.desirable for e in data])
    chosen = 1 - torch.sigmoid(OBJECTIVE.beta * (logratios - kl))
    rejected = 1 - torch.sigmoid(OBJECTIVE.beta * (kl - logratios))
    losses = torch.where(
        good, OBJECTIVE.desirable_weight * chosen, OBJECTIVE.undesirable_weight * rejected
    )
    weights = torch.tensor([e.weight for e in data], dtype=losses.dtype)
    return (weights * losses).sum() / len(data), float(kl)


# A reference under which z0 is above 0, and one under which it is held at 0.
@pytest.mark.parametrize(("seed", "held"), [(8, False), (7, True)])
@pytest.mark.parametrize(("budget", "sharing"), PACKINGS)
def test_kto_is_the_mean_over_rows_with_one_z0(budget, sharing, seed, held):
    """Fails if z0 is that of a micro-batch, of other rows, or has a gradient."""
    data, model, other = verdicts(), tiny_model(), tiny_model(seed=seed)
    loss, z0 = trl_style(model, other, data)
    assert (z0 == 0.0) is held
    made = fitter(tiny_model(), loss_of(data, other))
    asked = measured(data, budget=budget, sharing=sharing)
    step = made.step
    made.step = lambda update: step(update, measured=asked)  # type: ignore[method-assign]
    update = pair_update(data, micro_batch_tokens=max(budget, 24), prefix_sharing=sharing)
    found, grads = gradient(made, update)
    assert found == pytest.approx(float(loss.detach()), rel=1e-12)
    assert relative_error(grads, plain_gradient(model, loss)) < 1e-11


def test_a_verdict_that_may_be_wrong_counts_as_both():
    """Fails if a label probability is passed over, or if it is that of being desirable."""
    data, model, other = verdicts(), tiny_model(), tiny_model(seed=8)
    probabilities = [0.9, 0.6, None, 0.75, 0.5, 1.0]
    soft = [replace(e, label_probability=p) for e, p in zip(data, probabilities, strict=True)]
    wanted = 0.0
    for index, p in enumerate(probabilities):
        for share, wrong in ((1.0 if p is None else p, False), (0.0 if p is None else 1 - p, True)):
            # One answer's part: all others weigh nothing, and its verdict may be turned round.
            alone = [replace(e, weight=e.weight if at == index else 0.0,
                             desirable=e.desirable != (wrong and at == index))
                     for at, e in enumerate(data)]  # fmt: skip
            wanted = wanted + share * trl_style(model, other, alone)[0]
    made = fitter(tiny_model(), loss_of(soft, other))
    asked, step = measured(soft, budget=24), made.step
    made.step = lambda update: step(update, measured=asked)  # type: ignore[method-assign]
    found, grads = gradient(made, pair_update(soft, micro_batch_tokens=24))
    assert found == pytest.approx(float(wanted.detach()), rel=1e-12)
    assert relative_error(grads, plain_gradient(model, wanted)) < 1e-11


def test_metrics_are_those_of_the_update():
    data, other = verdicts(), tiny_model(seed=8)
    found = []
    for budget in (24, 400):
        made = fitter(tiny_model(), loss_of(data, other))
        update = pair_update(data, micro_batch_tokens=budget)
        found.append(made.evaluate(update, measured(data, budget=budget)).result())
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    with torch.no_grad():
        own = [token_log_probs(tiny_model(), e, 0).sum() for e in data]
        theirs = [token_log_probs(other, e, 0).sum() for e in data]
    ratios = [float(ours - ref) for ours, ref in zip(own, theirs, strict=True)]
    good = [r for r, e in zip(ratios, data, strict=True) if e.desirable]
    bad = [r for r, e in zip(ratios, data, strict=True) if not e.desirable]
    _, z0 = trl_style(tiny_model(), other, data)
    assert found[0]["pref/z0"] == pytest.approx(z0, rel=1e-9)
    margin = 0.4 * (sum(good) / len(good) - sum(bad) / len(bad))
    assert found[0]["pref/margin"] == pytest.approx(margin, rel=1e-9)
    right = sum(r > z0 for r in good) + sum(r < z0 for r in bad)
    assert found[0]["pref/accuracy"] == pytest.approx(right / len(data))
    assert found[0]["pref/kl_chosen"] == pytest.approx(sum(good) / len(good), rel=1e-9)


def test_training_goes_where_verdicts_point():
    data = verdicts()
    made = fitter(tiny_model(), loss_of(data, tiny_model()))
    update, asked = pair_update(data, micro_batch_tokens=64), measured(data)
    before = made.evaluate(update, asked).result()
    for _ in range(5):
        made.step(update, measured=asked)
    after = made.evaluate(update, asked).result()
    assert after["x/loss"] < before["x/loss"] - 0.02
    assert after["pref/reward_chosen"] > 0 > after["pref/reward_rejected"]


def kto_steps(ranks=None):
    data, model, other = verdicts(8), tiny_model(), tiny_model(seed=8)
    steps = [data[:4], data[4:]]
    known = {}
    for part in steps:
        known |= loss_of(part, other)._reference
    loss = KtoLoss(OBJECTIVE, reference=known, examples={e.id: e for e in data})
    made: Fitter = fitter(model, loss, ranks=ranks)
    found = []
    for part in steps:
        update = pair_update(part, micro_batch_tokens=32)
        found.append(made.step(update, measured=measured(part, budget=32)).result())
        del found[-1]["train/tokens_per_second"]
    return {"weights": {n: p.detach() for n, p in model.named_parameters()}, "metrics": found}


def kto_as(address, rank, world_size):
    from tests.train.crew import joined

    ranks = joined(address, rank, world_size)
    try:
        return kto_steps(ranks)
    finally:
        ranks.close()


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_make_the_kto_updates_of_one_process(crew, world_size):
    """Fails if z0 stays with a rank."""
    alone = kto_steps()
    assert alone["metrics"][0]["pref/z0"] > 0
    for found in crew.run(world_size, kto_as):
        assert relative_error(found["weights"], alone["weights"]) < 1e-10
        for ours, theirs in zip(found["metrics"], alone["metrics"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


def test_z0_is_not_taken_of_rows_that_are_trained():
    data = verdicts()
    made = fitter(tiny_model(), loss_of(data, tiny_model()))
    with pytest.raises(TrainError, match=r"z0 of KTO was asked of row e\d\[0\]"):
        made.step(pair_update(data, micro_batch_tokens=64))


def named(data, *, longest=LONGEST):
    return [(m.prompt.id, m.answered.id) for m in mismatches_of(data, longest=longest)]


def test_a_prompt_gets_the_next_answer_to_another_prompt():
    """Fails if answers to the same prompt are taken for mismatched ones."""
    data = verdicts(5)
    assert named(data) == [("e0", "e1"), ("e1", "e2"), ("e2", "e3"), ("e3", "e4"), ("e4", "e0")]
    data[1] = replace(data[1], prompt_ids=data[0].prompt_ids)
    data[4] = replace(data[4], prompt_ids=data[0].prompt_ids)
    assert named(data) == [("e0", "e2"), ("e1", "e2"), ("e2", "e3"), ("e3", "e4"), ("e4", "e2")]


def test_an_answer_that_does_not_fit_behind_a_prompt_is_passed_over():
    data = verdicts(3)
    long = answer(random.Random(1))
    data[1] = replace(data[1], answers=(replace(long, ids=(5,) * 20, mask=(1,) * 20),))
    longest = len(data[1].prompt_ids) + 20
    data[0] = replace(data[0], prompt_ids=(7,) * (longest - 12))
    assert named(data, longest=longest)[0] == ("e0", "e2")
    with pytest.raises(DataError, match=r"'e0': its prompt of \d+ tokens fits with no other"):
        mismatches_of(data[:2], longest=longest)


@pytest.mark.parametrize("count", [1, 3])
def test_an_update_of_one_prompt_is_refused(count):
    data = [replace(e, prompt_ids=(3, 4)) for e in verdicts(count)]
    with pytest.raises(DataError, match=rf"an update of {count} rows has one prompt.*examples_per"):
        mismatches_of(data, longest=LONGEST)
