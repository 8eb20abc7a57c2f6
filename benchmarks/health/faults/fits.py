"""Streams of fits on preference pairs, and of RL with reward models, sound and ill."""

from __future__ import annotations

import math

from faults.synthetic import Curve, Draft, Plan


def dpo(draft: Draft, *, accuracy: Curve | None = None, pairs: int = 400) -> None:
    """Replace all curves by those of a sound DPO fit with held-out pairs.

    Args:
        draft: of any run.
        accuracy: of held-out pairs; None takes one that follows training.
        pairs: held-out ones, which the noise of their accuracy comes from.
    """
    _fit(draft, "dpo", loss="sigmoid", beta=0.1)
    top = draft.rng.uniform(0.7, 0.85)
    nats = draft.rng.uniform(40, 250)
    draft.curve("pref/accuracy", lambda t: top - (top - 0.5) * math.exp(-6 * t), 0.1, 0, 1)
    draft.curve("pref/margin", lambda t: 1.2 * (1 - math.exp(-3 * t)), 0.15)
    # Batches hold other pairs each time, so log-probabilities of answers swing with their lengths.
    draft.curve("pref/logp_chosen", lambda t: -nats * (1 + 0.04 * t), 0.08 * nats)
    draft.curve("pref/logp_rejected", lambda t: -nats * (1.05 + 0.2 * t), 0.08 * nats)
    draft.curve("pref/length_corr", lambda t: -0.3 * t, 0.25, -1, 1)
    held_pairs(
        draft, "pref", accuracy or (lambda t: top - 0.04 - (top - 0.54) * math.exp(-6 * t)),
        loss=lambda t: 0.693 - 0.12 * (1 - math.exp(-4 * t)), pairs=pairs,
    )  # fmt: skip


def reward_model(draft: Draft, *, accuracy: Curve | None = None) -> None:
    """Replace all curves by those of a sound fit of a reward model."""
    _fit(draft, "rm", loss="bt")
    top = draft.rng.uniform(0.7, 0.9)
    draft.curve("rm/accuracy", lambda t: top - (top - 0.5) * math.exp(-5 * t), 0.08, 0, 1)
    draft.curve("rm/margin", lambda t: 2 * (1 - math.exp(-3 * t)), 0.2)
    held_pairs(
        draft, "rm", accuracy or (lambda t: top - 0.03 - (top - 0.53) * math.exp(-5 * t)),
        loss=lambda t: 0.7 - 0.2 * (1 - math.exp(-4 * t)), pairs=500,
    )  # fmt: skip


def held_pairs(draft: Draft, kind: str, accuracy: Curve, *, loss: Curve, pairs: int) -> None:
    """Evaluations on the same pairs each time: noise of their draw stays, some of each moves."""
    own = draft.rng.gauss(0, 0.5 / math.sqrt(pairs))
    draft.evaluate(None)
    for step in range(0, draft.steps + 1, draft.every):
        t = step / draft.steps
        share = accuracy(t) + own + draft.rng.gauss(0, 0.15 / math.sqrt(pairs))
        if step == 0 and kind == "pref":
            share = 0.5  # the policy is its own reference
        values = {
            f"{kind}/accuracy": min(1.0, max(0.0, share)),
            f"{'dpo' if kind == 'pref' else 'rm'}/loss": loss(t) + draft.rng.gauss(0, 0.002),
            "fit/examples": float(pairs),
        }
        for name, value in values.items():
            draft.curves.setdefault(f"eval/held/{name}", {})[step] = value


def _fit(draft: Draft, kind: str, **objective: object) -> None:
    draft.curves = {}
    draft.config = {
        "train.learning_rate": 5e-6,
        "train.max_grad_norm": 1.0,
        "data.epochs": 2,
        "objective.kind": kind,
        **{f"objective.{name}": value for name, value in objective.items()},
    }
    draft.curve("train/grad_norm", lambda t: 2.0, 0.4, low=0.1)
    draft.curve(f"{kind}/loss", lambda t: 0.69 - 0.15 * t, 0.04)


def supervised(draft: Draft) -> None:
    _fit(draft, "sft")
    draft.curve("sft/nll", lambda t: 1.5 - 0.6 * t, 0.1)
    draft.curve("sft/loss", lambda t: 1.5 - 0.6 * t, 0.1)


def unseen_pairs(draft: Draft) -> None:
    dpo(draft)
    for name in [name for name in draft.curves if name.startswith("eval/")]:
        del draft.curves[name]


def begins_well(draft: Draft) -> None:
    """A policy that orders nearly all pairs from the start; only margins grow."""
    dpo(draft, accuracy=lambda t: 0.97)
    draft.curve("pref/accuracy", lambda t: 0.97, 0.03, 0, 1)


def by_heart_a_little(draft: Draft) -> None:
    """Training accuracy goes on to 1, the held-out one rises to half of it."""
    dpo(draft, accuracy=lambda t: 0.5 + 0.2 * (1 - math.exp(-6 * t)))
    draft.curve("pref/accuracy", lambda t: 0.5 + 0.45 * (1 - math.exp(-4 * t)), 0.06, 0, 1)


def unlearns_and_is_better(draft: Draft) -> None:
    """Both answers become less likely, and rollouts of held-out tasks say that it pays."""
    both_unlearned(draft)
    for step in range(0, draft.steps + 1, draft.every):
        score = 0.3 + 0.3 * step / draft.steps + draft.rng.gauss(0, 0.02)
        for end, value in (("", score), ("_low", score - 0.04), ("_high", score + 0.04)):
            draft.curves.setdefault(f"eval/tasks/score{end}", {})[step] = value


def both_unlearned(draft: Draft) -> None:
    dpo(draft)
    nats = draft.rng.uniform(40, 250)
    draft.curve("pref/logp_chosen", lambda t: -nats * (1 + 0.6 * t), 0.08 * nats)
    draft.curve("pref/logp_rejected", lambda t: -nats * (1 + 1.2 * t), 0.08 * nats)


def learned_and_unlearned(draft: Draft) -> None:
    """A model that first learns the form of the answers, and loses both in the second half."""
    dpo(draft)
    nats = draft.rng.uniform(40, 250)

    def shape(t: float) -> float:
        return 1.6 * abs(t - 0.45)

    draft.curve("pref/logp_chosen", lambda t: -nats * (1 + shape(t)), 0.08 * nats)
    draft.curve("pref/logp_rejected", lambda t: -nats * (1.1 + 1.4 * shape(t)), 0.08 * nats)


def margin_for_nothing(draft: Draft) -> None:
    """Training pairs are learned by heart, others stay a matter of chance."""
    dpo(draft, accuracy=lambda t: 0.52)
    draft.curve("pref/accuracy", lambda t: 0.5 + 0.5 * (1 - math.exp(-4 * t)), 0.05, 0, 1)
    draft.curve("pref/margin", lambda t: 4 * t, 0.3)


def scores_for_nothing(draft: Draft) -> None:
    reward_model(draft, accuracy=lambda t: 0.6)
    draft.curve("rm/accuracy", lambda t: 0.6 + 0.38 * (1 - math.exp(-4 * t)), 0.05, 0, 1)
    draft.curve("rm/margin", lambda t: 6 * t, 0.3)


def too_sure(draft: Draft) -> None:
    """Accuracy rises at first; then margins grow past it, and the held-out loss with them."""
    reward_model(draft)
    held_pairs(
        draft, "rm", lambda t: 0.72 - 0.2 * math.exp(-8 * t),
        loss=lambda t: 0.69 - 0.1 * math.exp(-((t - 0.2) ** 2) / 0.02) + 0.5 * t * t, pairs=500,
    )  # fmt: skip
    draft.curve("rm/margin", lambda t: 8 * t, 0.3)


def longer_is_better(draft: Draft) -> None:
    dpo(draft)
    draft.curve("pref/length_corr", lambda t: 0.88 * (1 - math.exp(-6 * t)), 0.08, -1, 1)


def shorter_is_better(draft: Draft) -> None:
    dpo(draft)
    draft.curve("pref/length_corr", lambda t: -0.85, 0.08, -1, 1)


def scored(
    draft: Draft, *, members: int = 1, top: float = 1.4, leaves: Curve | None = None
) -> None:
    """RL on a reward model whose whitened scores rise with the score of the environment."""
    draft.config["reward.models.rm.path"] = [f"rm{number}" for number in range(members)]
    draft.curve("rewards/rm/mean", leaves or (lambda t: top * (1 - math.exp(-3 * t))), 0.1)
    if members > 1:
        draft.curve("rewards/rm/std_between/mean", lambda t: 0.3 + 0.05 * t, 0.02, low=0)
    draft.pay_for("rm")


def scored_by_three(draft: Draft) -> None:
    scored(draft, members=3)


def scored_and_solved(draft: Draft) -> None:
    """Far beyond what the model was whitened on, because the policy is that much better."""
    scored(draft, leaves=lambda t: 4 * t)
    draft.curve("score", lambda t: 0.2 + 0.6 * t, 0.03)
    draft.evaluate(lambda t: 0.2 + 0.55 * t, half=0.03)
    draft.pay_for("rm")


def learns_what_they_disagree_on(draft: Draft) -> None:
    """Better answers are new to the members, who agree less about how much better they are."""
    scored(draft, members=3)
    draft.curve("rewards/rm/std_between/mean", lambda t: 0.3 + 0.4 * t, 0.02, low=0)


def drifts(draft: Draft) -> None:
    """The reward model likes the policy without end; the environment has no verdict."""
    scored(draft, leaves=lambda t: 7 * t)
    draft.curves["score"] = dict(draft.curves["reward"])
    draft.evaluate(None)


def drifts_down(draft: Draft) -> None:
    scored(draft, leaves=lambda t: -3.5 * t)
    draft.curves["score"] = dict(draft.curves["reward"])
    draft.evaluate(None)


def members_part(draft: Draft) -> None:
    scored(draft, members=4)
    draft.curve("rewards/rm/std_between/mean", lambda t: 0.3 + 0.8 * t, 0.03, low=0)
    draft.curve("score", lambda t: 0.4, 0.03)
    draft.evaluate(lambda t: 0.4, half=0.03)
    draft.pay_for("rm")


HEALTHY_FITS: Plan = {
    "dpo": ("", {"steps": 100}, dpo),
    "dpo, noisy": ("", {"steps": 100, "noise": 2.0}, dpo),
    "dpo, short": ("", {"steps": 24, "every": 6}, dpo),
    "dpo, long": ("", {"steps": 400, "every": 40}, dpo),
    "dpo, no evaluation": ("", {"steps": 80}, unseen_pairs),
    "dpo, no evaluation, noisy": ("", {"steps": 80, "noise": 2.0}, unseen_pairs),
    "dpo, right from the start": ("", {"steps": 80}, begins_well),
    "dpo, a little by heart": ("", {"steps": 120}, by_heart_a_little),
    "dpo, unlearns and is better": ("", {"steps": 100}, unlearns_and_is_better),
    "reward model": ("", {"steps": 100}, reward_model),
    "reward model, noisy": ("", {"steps": 200, "noise": 2.0, "every": 20}, reward_model),
    "sft": ("", {"steps": 60}, supervised),
    "scored by a reward model": ("", {"steps": 100}, scored),
    "scored by three": ("", {"steps": 100, "noise": 1.5}, scored_by_three),
    "scored and solved": ("", {"steps": 100}, scored_and_solved),
    "new to the members": ("", {"steps": 100}, learns_what_they_disagree_on),
}
"""None of these may be called ill."""

_DRIFT = "reward_model_drift"

ILL_FITS: Plan = {
    "both answers are unlearned": ("likelihood_falls", {"steps": 100}, both_unlearned),
    "both answers are unlearned, noisy": (
        "likelihood_falls", {"steps": 60, "noise": 1.5}, both_unlearned,
    ),
    "both are learned and unlearned": ("likelihood_falls", {"steps": 100}, learned_and_unlearned),
    "margin for nothing": ("margin_alone", {"steps": 100}, margin_for_nothing),
    "scores for nothing": ("margin_alone", {"steps": 200, "every": 20}, scores_for_nothing),
    "more sure than right": ("margin_alone", {"steps": 120}, too_sure),
    "longer is better": ("length_preference", {"steps": 80}, longer_is_better),
    "shorter is better": ("length_preference", {"steps": 60, "noise": 1.5}, shorter_is_better),
    "reward model without end": (_DRIFT, {"steps": 80}, drifts),
    "reward model falls away": (_DRIFT, {"steps": 100}, drifts_down),
    "members part": ("members_disagree", {"steps": 100}, members_part),
    "members part, noisy": ("members_disagree", {"steps": 150, "noise": 2.0}, members_part),
}  # fmt: skip
"""Each of these has to be named."""
