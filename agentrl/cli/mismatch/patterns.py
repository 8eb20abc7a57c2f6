"""Patterns of a gap that depend on where in a conversation a token stands, or in which."""

from __future__ import annotations

import numpy as np

from agentrl.cli.mismatch.records import Cause
from agentrl.cli.mismatch.token_table import GapTable, Numbers
from agentrl.config.fleet import ServingSection
from agentrl.config.schema import ChatSection
from agentrl.config.training import TrainSection
from agentrl.health.measures.curves import percent
from agentrl.health.records import Lever

NOTABLE = 0.1
"""Above it a part of the tokens is worth a look: 10 % of a probability."""
FEW = 8
"""Fewer tokens prove nothing."""


def mean_of(values: Numbers) -> float:
    """Their mean; 0 of none."""
    return float(values.mean()) if len(values) else 0.0


def boundary(table: GapTable, chat: ChatSection) -> Cause | None:
    """Tokens after a text of the environment are off, at once or for the whole turn."""
    size, later = table.size, table.turn > 1
    start = later & (table.in_turn <= 2)
    rest = later & (table.in_turn > 2)
    if later.sum() < FEW:
        return None
    fresh = mean_of(size[table.turn == 1])
    at_start = mean_of(size[start])
    jump = start.sum() >= FEW // 2 and at_start >= max(NOTABLE, 4 * mean_of(size[rest]), 4 * fresh)
    whole = mean_of(size[later]) >= max(NOTABLE, 4 * fresh)
    if not (jump or whole):
        return None
    where = "the first tokens after" if jump else "all turns after"
    return Cause(
        name="boundary",
        title=f"{where} the environment's text are off: other tokens were seen than are stored",
        evidence=(
            f"first two tokens of turns 2 and later: mean gap {at_start:.3g} nats",
            f"later tokens of those turns {mean_of(size[rest]):.3g}, turn 1 {fresh:.3g}",
        ),
        advice="run agentrl preflight: its line on the template says whether a conversation keeps "
        f"its tokens when a turn is added (chat.template is {chat.template!r}); an engine "
        "behind serving.urls has to be given ids, not text",
    )


def later_rows(table: GapTable) -> Cause | None:
    """Rows after a break of the prefix are off, and first rows are not."""
    size, later = table.size, table.row > 0
    first = mean_of(size[~later])
    if later.sum() < FEW or mean_of(size[later]) < max(NOTABLE, 4 * first):
        return None
    return Cause(
        name="prefix_break",
        title="rows that begin after a break of the context are off",
        evidence=(
            f"rows 1 and later: mean gap {mean_of(size[later]):.3g} nats; first rows {first:.3g}",
        ),
        advice="the environment rewrites its history: look at what the row's prompt holds with "
        "agentrl traj show, and whether that is what the engine was given",
    )


def few_rollouts(table: GapTable, serving: ServingSection) -> Cause | None:
    """A few rollouts hold most of the gap: one server, or one conversation, went wrong."""
    size = table.size
    number = len(table.rollout_ids)
    count = np.bincount(table.rollout, minlength=number)
    mean = np.bincount(table.rollout, weights=size, minlength=number) / np.maximum(1, count)
    usual = float(np.median(mean))
    bad = np.flatnonzero(mean > max(NOTABLE, 5 * usual))
    held = float((mean * count)[bad].sum() / size.sum())
    if not len(bad) or number < 4 or len(bad) > 0.4 * number or held < 0.5:
        return None
    order = bad[np.argsort(-mean[bad])]
    named = ", ".join(table.rollout_ids[index] for index in order[:5])
    started = serving.replicas if serving.engine == "vllm" else 0
    several = started > 1 or len(serving.urls) > 1
    return Cause(
        name="few_rollouts",
        title=f"{len(bad)} of {number} rollouts hold {percent(held)} of the gap",
        evidence=(
            f"their mean gap is {mean[bad].mean():.3g} nats, that of the rollout in the middle "
            f"{usual:.3g}",
            f"worst: {named}",
        ),
        advice="a conversation stays on one engine: "
        + (
            "one of them may hold other weights or be broken; look at logs/ of the run and at "
            "sync/quarantined"
            if several
            else "look at these with agentrl traj show --tokens"
        ),
    )


def along_context(table: GapTable, train: TrainSection) -> Cause | None:
    """The gap grows along the context: positions or cached keys differ, not the weights."""
    size, position = table.size, table.position
    edges = np.quantile(position, (0.25, 0.75))
    near, far = size[position <= edges[0]], size[position > edges[1]]
    if min(len(near), len(far)) < FEW or mean_of(far) < max(NOTABLE, 4 * mean_of(near)):
        return None
    levers = ()
    if train.prefix_sharing:
        why = "Tells whether the trainer's shared prefixes are what differs; costs time only."
        levers = (Lever(key="train.prefix_sharing", value=False, why=why),)
    return Cause(
        name="context",
        title="the gap grows along the context",
        evidence=(
            f"mean gap {mean_of(near):.3g} nats up to token {edges[0]:.0f} and "
            f"{mean_of(far):.3g} beyond token {edges[1]:.0f}",
        ),
        levers=levers,
        advice="compare how the engines and the model's config scale rotary positions, and try "
        "without the engines' prefix cache",
    )
