"""Findings ranked: which is a cause, which follow from it, and one list of what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentrl.health.records import Dating, Lever, Verdict
from agentrl.types.finding import Status

_REWARD = "reward_flat reward_fall reward_spike empty_gradient kl_too_small decoupling score_falls"
_TEXT = "gibberish repetition pattern_collapse truncation length_hacking turns_collapse"
_UPDATE = "clip_fraction grad_norm kl_too_large entropy_collapse entropy_explosion not_finite"

_EXPLAINS: Mapping[str, frozenset[str]] = {
    name: frozenset(words.split())
    for name, words in (
        ("infrastructure", f"tool_errors turns_collapse {_REWARD}"),
        ("starvation", "reward_flat length_hacking score_falls"),
        # Not "truncation": the limit of a turn ends what the policy writes, whatever a tool gave.
        (
            "tool_errors",
            f"{_TEXT.replace('truncation ', '')} {_REWARD} entropy_collapse entropy_explosion",
        ),
        ("sampler_learner_gap", f"{_UPDATE} {_TEXT} {_REWARD} value_divergence"),
        ("value_divergence", f"{_UPDATE} {_TEXT} {_REWARD}"),
        ("reward_clipped", "reward_flat reward_fall empty_gradient kl_too_small decoupling"),
        ("grad_norm", f"{_UPDATE} {_TEXT} {_REWARD} sampler_learner_gap tool_errors"),
        ("clip_fraction", f"{_UPDATE} {_TEXT} {_REWARD} sampler_learner_gap"),
        ("not_finite", f"{_UPDATE} {_TEXT} {_REWARD} sampler_learner_gap value_divergence"),
        ("entropy_explosion", f"{_UPDATE} {_TEXT} {_REWARD} sampler_learner_gap tool_errors"),
        ("kl_too_large", f"{_UPDATE} {_TEXT} {_REWARD} sampler_learner_gap tool_errors"),
        ("entropy_collapse", f"{_TEXT} {_REWARD}"),
        ("judge_hacking", f"{_TEXT} decoupling score_falls reward_spike kl_too_large"),
        ("members_disagree", f"{_TEXT} decoupling score_falls reward_spike kl_too_large"),
        ("reward_model_drift", f"{_TEXT} decoupling score_falls reward_spike kl_too_large"),
        (
            "score_falls",
            f"{_TEXT} decoupling reward_spike kl_too_large entropy_collapse empty_gradient",
        ),
        ("unscored_pay", "pattern_collapse reward_spike kl_too_large entropy_collapse"),
        # Loops surprise a letter model, too; other nonsense does not loop.
        ("repetition", f"truncation length_hacking gibberish pattern_collapse {_REWARD}"),
        ("gibberish", f"repetition truncation tool_errors entropy_explosion {_REWARD}"),
        ("pattern_collapse", f"entropy_collapse repetition length_hacking {_REWARD}"),
        ("turns_collapse", f"{_REWARD} pattern_collapse entropy_collapse"),
        ("truncation", "reward_flat reward_fall empty_gradient turns_collapse"),
        ("length_hacking", "truncation repetition decoupling reward_spike reward_fall"),
        ("kl_too_small", "reward_flat"),
        ("reward_flat", "empty_gradient"),
        ("empty_gradient", "reward_flat kl_too_small decoupling"),
        ("reward_fall", "reward_flat empty_gradient decoupling"),
        ("decoupling", "reward_spike kl_too_large"),
        ("reward_spike", "kl_too_large"),
        ("margin_alone", "length_preference likelihood_falls"),
    )
}
"""What follows from a failure in a run that had been sound; by detector."""
_UPSTREAM = tuple(_EXPLAINS)
"""Detectors in the order in which a failure goes through a run: of two that began at the same time
the earlier one is the cause."""
_SLOW = frozenset({"reward_fall", "decoupling", "score_falls"})
_SLOW_TIMES = 3
"""Noise of rewards, and the distance of evaluations, date these so many times less exactly."""
_TIE_STEPS = 2
"""Onsets so near to each other do not show which came first."""
_NEAR_STEPS, _NEAR_SHARE = 5, 0.04
"""Onsets are known to so many steps, or to this share of the steps before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedCause:
    """A finding that no other explains, with those that it explains."""

    verdict: Verdict
    """The finding itself."""
    follows: tuple[Verdict, ...] = ()
    """Findings that follow from it, the earliest first; their levers are not pulled."""


def causes(verdicts: Sequence[Verdict]) -> list[RankedCause]:
    """Findings in the order in which to act on them, each with what follows from it.

    One finding explains another if failures of its kind lead there, or the other says so itself,
    and it began no later. Where a date is only known to lie between two steps, both are tried. What
    fails, or makes something fail, comes before what is worth a look, and what began first before
    the rest.

    Args:
        verdicts: of `diagnose`; those that are ok or unknown count for nothing.
    """
    found = [one for one in verdicts if one.status in (Status.WARN, Status.FAIL)]
    explained: dict[str, str] = {}
    for one in found:
        sources = [other for other in found if other is not one and _explains(other, one)]
        if sources:
            explained[one.name] = min(sources, key=_order).name
    by_name = {one.name: one for one in found}
    for name in list(explained):
        circle = _circle(name, explained)
        if circle:
            del explained[min((by_name[each] for each in circle), key=_order).name]
    ranked = [
        RankedCause(
            verdict=root,
            follows=tuple(
                sorted(
                    (one for one in found if _root(one.name, explained) == root.name != one.name),
                    key=lambda one: (_began(one), _place(one)),
                )
            ),
        )
        for root in found
        if root.name not in explained
    ]
    return sorted(ranked, key=_urgency)


def merged_levers(ranked: Sequence[RankedCause]) -> list[tuple[Lever, str]]:
    """Each key once, with the value that the first cause gives it and the name of that cause."""
    chosen: dict[str, tuple[Lever, str]] = {}
    for cause in ranked:
        for lever in cause.verdict.levers:
            chosen.setdefault(lever.key, (lever, cause.verdict.name))
    return list(chosen.values())


def _explains(cause: Verdict, effect: Verdict) -> bool:
    told = cause.name in effect.explained_by
    if not told and effect.name not in _EXPLAINS.get(cause.name, ()):
        return False
    gap = _gap(cause, effect)
    near = max(_NEAR_STEPS, round(_NEAR_SHARE * max(_began(cause), _began(effect))))
    slow = told or (effect if gap < 0 else cause).name in _SLOW
    if abs(gap) > near * (_SLOW_TIMES if slow else 1):
        return gap > 0
    if told or effect.name in cause.explained_by:
        return told
    if cause.name not in _EXPLAINS.get(effect.name, ()):
        return True
    # Each could explain the other: the earlier one, and else the one further upstream.
    tie = near * (_SLOW_TIMES if slow else 1) if {cause.name, effect.name} & _SLOW else _TIE_STEPS
    return gap > 0 if abs(gap) > tie else _place(cause) < _place(effect)


def _gap(cause: Verdict, effect: Verdict) -> int:
    """Steps from the begin of one to that of the other; 0 where they may have begun together."""
    (cause_first, cause_last), (first, last) = _begin_range(cause), _begin_range(effect)
    if first > cause_last:
        return first - cause_last
    return min(0, last - cause_first)


def _begin_range(verdict: Verdict) -> tuple[int, int]:
    """First and last step at which a finding may have begun.

    Texts are looked at in some steps only. A curve that moved, but has no change point, moved at
    some time.
    """
    began = _began(verdict)
    for item in verdict.evidence:
        if item.dating is Dating.NONE or item.first_step is None:
            continue
        if item.sound_step is not None:
            return min(began, item.sound_step + 1), max(began, item.first_step)
        moved = item.dating is Dating.MOVEMENT and item.first_step == began
        return began, (item.last_step or began) if moved else began
    return began, began


def _root(name: str, explained: Mapping[str, str]) -> str:
    while name in explained:
        name = explained[name]
    return name


def _circle(name: str, explained: Mapping[str, str]) -> list[str]:
    """Findings that explain each other in a circle, if this one leads into one."""
    seen: list[str] = []
    while name in explained:
        if name in seen:
            return seen[seen.index(name) :]
        seen.append(name)
        name = explained[name]
    return []


def _urgency(ranked: RankedCause) -> tuple[bool, int, int]:
    fails = any(one.status is Status.FAIL for one in (ranked.verdict, *ranked.follows))
    return not fails, _began(ranked.verdict), _place(ranked.verdict)


def _order(verdict: Verdict) -> tuple[bool, int, int]:
    return verdict.status is not Status.FAIL, _began(verdict), _place(verdict)


def _began(verdict: Verdict) -> int:
    return verdict.first_step or 0


def _place(verdict: Verdict) -> int:
    return _UPSTREAM.index(verdict.name) if verdict.name in _UPSTREAM else len(_UPSTREAM)
