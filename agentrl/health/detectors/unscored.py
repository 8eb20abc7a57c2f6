"""Detector over the reward where nothing but the reward judges the answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean

from agentrl.health.detector import detector
from agentrl.health.detectors.length import pays_for_length
from agentrl.health.findings import (
    ends,
    fine,
    found,
    moved,
    score_rise,
    shown,
    trained,
    unknown,
)
from agentrl.health.levers import policy
from agentrl.health.measures.curves import Change, change, number, percent
from agentrl.health.measures.texts import bound_to_task, common_share
from agentrl.health.measures.wording import paid_words
from agentrl.health.movement import movement, part_metrics
from agentrl.health.own_score import carried_by_shaping, own_score
from agentrl.health.paid_parts import ENV_PART, is_paid, reward_weights
from agentrl.health.records import Evidence, History, RolloutFacts, Verdict
from agentrl.health.thresholds import OURS, Limits, bound
from agentrl.types.finding import Status

_NAMED = 3
"""Tasks that are named."""
_PAYS = 0.5
"""Correlation of reward and length inside groups, as that of `length_hacking`."""
_COPY = 0.8
"""Share of an answer that stands in its prompt, from which it is a copy."""
_COPIES, _MORE_COPIES = 0.6, 0.3
"""Share of the paid answers that are copies, and by how much it grew, to be told."""
_FEW_TASKS = 1 / 3
_MOST_PAY = 0.9


@detector(
    bound("loss", 0.5, "share of its first level that a part lost while another part rose", OURS),
    bound("common", 0.6, "share of an answer's wording that most other tasks get, too", OURS),
    bound("rise", 0.3, "by which that share grew since the first steps", OURS),
)
def unscored_pay(history: History, limits: Limits) -> Verdict:
    """Pay that no declared score judges: parts of the reward that move against each other, or
    answers that become alike in wording whatever the task, and are paid. It names rollouts and
    tasks to look at; pay that comes from some tasks only is named and is no finding, since easy
    tasks pay first in any run."""
    name = "unscored_pay"
    if "reward" not in history.metrics:
        return unknown(name, "the reward is not logged")
    if own_score(history) == "score":
        return unknown(name, "the environment gives a score beside the reward")
    first, last = ends(history)
    rise = score_rise(history)
    apart = None if rise is not None and rise.up else _parts_apart(history, limits)
    if apart is not None:
        (up, gain), (down, loss) = apart
        metrics = part_metrics(history)
        return found(
            name,
            Status.WARN,
            f"the part {up} of the reward rises and the part {down} falls",
            *(
                moved(metrics[part], history.metrics[metrics[part]], move, dates=part == down)
                for part, move in ((up, gain), (down, loss))
            ),
            *_paid_by(last, up, down),
            levers=[*policy.stronger_kl(history.config), *policy.see_held_out(history.config)],
        )
    alike = _alike(first, last, limits)
    if alike is not None:
        return found(
            name,
            Status.WARN,
            f"answers become alike whatever the task, and are paid: {alike.text}",
            alike,
            levers=[*policy.stronger_kl(history.config), *policy.see_held_out(history.config)],
        )
    told = "no part of the reward falls while another rises, and paid answers differ by the task"
    odd = [
        *(_only_shaping(history), carried_by_shaping(history)),
        *(_copies(first, last), _words_pay(history, first, last)),
        *(_length_pays(history, last), _few_tasks(last)),
    ]
    return fine(name, "; ".join(filter(None, [told, *odd])))


def _words_pay(
    history: History, first: Sequence[RolloutFacts], last: Sequence[RolloutFacts]
) -> str:
    """Words for a wording that pays in every task; empty without one."""
    every = [fact for of in trained(history).values() for fact in of]
    found = paid_words(every, first, last)
    if found is None:
        return ""
    return (
        f'answers with the words "{found.words}" are paid whatever the task, {percent(found.paid)} '
        f"of {found.rollouts} rollouts, {percent(found.others)} of those without; they earn more "
        f"in {found.won} of the {found.groups} groups where siblings differ by them (a format that "
        "the reward asks for would look the same)"
    )


def _copies(first: Sequence[RolloutFacts], last: Sequence[RolloutFacts]) -> str:
    """Words for paid answers that have come to repeat their prompt; empty for others."""
    paid = [fact for fact in _paid(last) if fact.copied is not None]
    early = [fact for fact in first if fact.copied is not None]
    if not paid or not early:
        return ""
    copies = [fact for fact in paid if (fact.copied or 0.0) >= _COPY]
    now, before = len(copies) / len(paid), fmean((f.copied or 0.0) >= _COPY for f in early)
    if now < _COPIES or now < before + _MORE_COPIES:
        return ""
    seen = ", ".join(fact.rollout_id for fact in copies[-2:])
    return (
        f"{percent(now)} of the paid answers repeat the words of their prompt, {percent(before)} "
        f"at the start, as {seen} (where the answer stands in the prompt, that may be right)"
    )


def _length_pays(history: History, last: Sequence[RolloutFacts]) -> str:
    """Words for answers that grow where the longer sibling earns more; else empty."""
    series = history.metrics.get("completions/mean_length")
    grown, pays = change(series, 4) if series else None, pays_for_length(last)
    if grown is None or not grown.up or grown.end < 1.4 * grown.start or (pays or 0.0) < _PAYS:
        return ""
    return (
        f"answers grow from {number(grown.start)} to {number(grown.end)} tokens, and the longer "
        f"sibling earns more (correlation {number(pays or 0.0)})"
    )


def _only_shaping(history: History) -> str:
    """Words for pay that all comes from other parts than the environment's own; else empty."""
    metrics = part_metrics(history)
    own = history.metrics.get(metrics.get(ENV_PART, ""))
    if own is None or any(own.values):
        return ""
    payers = [
        part
        for part, metric in metrics.items()
        if any(value > 0 for value in history.metrics[metric].values)
        and is_paid(history.config, part) is not False
    ]
    return f"the environment itself paid 0, all pay came from {', '.join(payers)}" if payers else ""


def _parts_apart(
    history: History, limits: Limits
) -> tuple[tuple[str, Change], tuple[str, Change]] | None:
    """The paid part that rose most, and one that lost most of what it paid meanwhile."""
    whole = movement(history, "reward")
    if whole is None or whole.down:
        return None
    moves = [(part, move) for part, move in _paid_moves(history)]
    risen = [(part, move) for part, move in moves if move.up]
    # A penalty that grows, as one on length, is what better answers may cost.
    fallen = [
        (part, move)
        for part, move in moves
        if move.down and move.start > 0 and -move.gain >= limits["unscored_pay/loss"] * move.start
    ]
    if not risen or not fallen:
        return None
    most = max(risen, key=lambda each: each[1].gain)
    worst = min(fallen, key=lambda each: each[1].gain)
    # What rose has to carry the reward, or a small part has made room for a larger one.
    return (most, worst) if most[1].gain >= -worst[1].gain / 2 else None


def _paid_moves(history: History) -> Iterator[tuple[str, Change]]:
    """Movement of each part that raises the reward where it rises."""
    weights = reward_weights(history.config)
    for part, metric in part_metrics(history).items():
        move = movement(history, metric)
        weight = weights.get(part.partition("/")[0], weights.get(ENV_PART, 1.0))
        if move is not None and weight > 0 and is_paid(history.config, part) is not False:
            yield part, move


def _paid_by(last: Sequence[RolloutFacts], up: str, down: str) -> list[Evidence]:
    """Rollouts of the latest steps that have most of one part and little of the other."""
    known = [fact for fact in last if up in fact.parts and down in fact.parts]
    if not known:
        return []
    chosen = sorted(known, key=lambda fact: fact.parts[down] - fact.parts[up])[:_NAMED]
    tasks = ", ".join(dict.fromkeys(fact.task_id for fact in chosen))
    return [shown(chosen, f"most of {up} and little of {down} in tasks {tasks}")]


def _alike(
    first: Sequence[RolloutFacts], last: Sequence[RolloutFacts], limits: Limits
) -> Evidence | None:
    """Paid answers with the same wording for most tasks, which is not so at the start."""
    paid = _paid(last)
    now = common_share(_texts(paid))
    before = common_share(_texts(first)) or 0.0
    if now is None or now < limits["unscored_pay/common"]:
        return None
    if now < before + limits["unscored_pay/rise"] or bound_to_task(_texts(paid)):
        return None
    tasks = list(dict.fromkeys(fact.task_id for fact in paid))
    return shown(
        paid,
        f"{percent(now)} of the wording of paid answers is that of most other tasks, "
        f"{percent(before)} at the start; {len(tasks)} tasks, as {', '.join(tasks[:_NAMED])}",
        since=min(fact.step for fact in paid),
    )


def _texts(facts: Sequence[RolloutFacts]) -> list[tuple[str, str]]:
    return [(fact.task_id, fact.text) for fact in facts]


def _paid(facts: Sequence[RolloutFacts]) -> list[RolloutFacts]:
    """Those in the upper half of what was paid."""
    rewards = [fact.reward for fact in facts if fact.reward is not None]
    if not rewards or max(rewards) <= 0:
        return []
    middle = (max(min(rewards), 0.0) + max(rewards)) / 2
    return [fact for fact in facts if fact.reward is not None and fact.reward >= middle]


def _few_tasks(last: Sequence[RolloutFacts]) -> str:
    """Words for pay that comes from a few of the tasks; empty where it does not."""
    pay: dict[str, list[float]] = defaultdict(list)
    for fact in last:
        pay[fact.task_id].append(max(fact.reward or 0.0, 0.0))
    sums = sorted(((sum(of), task) for task, of in pay.items()), reverse=True)
    whole = sum(of for of, _ in sums)
    count = int(len(sums) * _FEW_TASKS)
    if not count or whole <= 0 or sum(of for of, _ in sums[:count]) < _MOST_PAY * whole:
        return ""
    paying = [task for of, task in sums[:count] if of > 0]
    mean = fmean(fmean(pay[task]) for task in paying)
    return (
        f"of what the latest steps paid, {percent(sum(of for of, _ in sums[:count]) / whole)} came "
        f"from {len(paying)} of {len(sums)} tasks (mean reward {number(mean)}): "
        f"{', '.join(paying[:_NAMED])}"
    )
