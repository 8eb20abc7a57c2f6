"""From rewards to tokens: KL in the reward, GAE over spans and rows, returns-to-go, whitening."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.batch import StepSettings, build_step
from agentrl.batch.credit import compute_credit
from agentrl.batch.records import RowKey
from agentrl.errors import DataError
from agentrl.types import AgentRequest
from tests.batch.batch_rows import group, resolved, row, turns

KL = {"kl_coef": 0.5, "use_kl_loss": False}
GAE = {"advantage_estimator": "gae", "whiten_advantages": False}
ESTIMATORS = ("reinforce", "reinforce_baseline", "rloo", "group_norm", "dr_grpo", "gae")


def build(*groups, tokens=64, **changes):
    chosen = {
        name: changes.pop(name)
        for name in ("clip_shaped", "needs", "prefix_sharing", "oldest_version", "epochs")
        if name in changes
    }
    algorithm = resolved(**changes)
    step = build_step(
        groups, StepSettings(algorithm=algorithm, micro_batch_tokens=tokens, seed=0, **chosen)
    )
    return step, algorithm


def key(rollout_id, index=0, group_id="g"):
    return RowKey(group_id=group_id, rollout_id=rollout_id, row_index=index)


def numbers(step, value):
    """`value` at every trained token, NaN elsewhere; `value` may be a function of (key, index)."""
    out = {}
    for rows in step.credit.rollouts:
        for part in rows:
            place = value if callable(value) else lambda _key, _index: value
            array = np.array([place(part.key, i) for i in range(len(part.mask_R))], dtype=float)
            out[part.key] = np.where(part.mask_R, array, np.nan)
    return out


def credited(step, algorithm, *, old=0.0, ref=0.0, values=0.0, kl_coef=None):
    return compute_credit(
        step,
        old=numbers(step, old),
        ref=numbers(step, ref),
        values=numbers(step, values),
        kl_coef=algorithm.kl_coef if kl_coef is None else kl_coef,
        algorithm=algorithm,
    )


def tokens(step):
    """Advantages of trained tokens by row, over all micro-batches of all updates."""
    out = {}
    for update in step.updates:
        for micro in update.micro_batches:
            for place, row_key in enumerate(micro.rows):
                here = (micro.row_R == place) & micro.mask_R
                out[row_key] = micro.advantages_R[here].tolist()
    return out


def by_rollout(step):
    """The same over the rows of each rollout, in order."""
    out: dict[str, list[float]] = {}
    for row_key, values in sorted(tokens(step).items()):
        out.setdefault(row_key.rollout_id, []).extend(values)
    return out


# GAE


def test_values_and_advantages_are_carried_across_what_the_environment_put_there():
    """FORMULAS C.9: 0.429. Fails (0.341) with values of environment tokens taken as 0, and with
    their NaN anywhere in the chain."""
    step, section = build(group(row("a", mask="110011", reward=1.0), row("b", mask="1")), **GAE)
    done = credited(step, section, values=0.5)
    assert done.credit is None
    want = [0.5 * 0.95**3, 0.5 * 0.95**2, 0.5 * 0.95, 0.5]
    assert tokens(done)[key("a")] == pytest.approx(want, rel=1e-15)
    assert want[0] == pytest.approx(0.429, abs=5e-4)
    assert done.returns[key("a")].tolist() == pytest.approx(
        [want[0] + 0.5, want[1] + 0.5, 0.0, 0.0, want[2] + 0.5, 1.0]
    )
    assert done.advantages["a"] == pytest.approx(sum(want) / 4)
    assert done.advantages["b"] == -0.5


def test_gae_goes_on_in_the_next_row_of_the_rollout():
    """Fails if a row ends the chain: its last token would be told that nothing comes after it."""
    whole, section = build(group(row("a", mask="110011", reward=1.0)), **GAE)
    split, _ = build(
        group(
            row("a", mask="1100", reward=1.0, row_index=3),
            row("a", mask="11", reward=1.0, row_index=7, prompt_ids=(1, 2, 3, 10, 11, 12, 13)),
        ),
        **GAE,
    )
    assert by_rollout(credited(split, section, values=0.5)) == by_rollout(
        credited(whole, section, values=0.5)
    )


def test_gae_with_turn_rewards_puts_each_at_the_last_token_of_its_turn():
    # Values 0 and lambda 1: the advantage is what comes after. The reward 4 is 1 + 2 and 1 more.
    mask = "11011"
    step, section = build(
        group(row("a", mask=mask, reward=4.0, turns=turns(mask, 1.0, 2.0))),
        **GAE, lam=1.0, turn_rewards="return_to_go",
    )  # fmt: skip
    assert tokens(credited(step, section))[key("a")] == [4.0, 4.0, 3.0, 3.0]


def test_a_turn_that_is_not_trained_earned_its_reward_for_the_tokens_before_it():
    mask = "110110"
    made = row(
        "a", mask=mask + "1", reward=7.0, turns=turns(mask + "1", 1.0, 2.0, 4.0),
        policy_versions=(5, 5, -1, 3, 3, -1, 5),
    )  # fmt: skip
    step, section = build(
        group(made), **GAE, lam=1.0, turn_rewards="return_to_go", oldest_version=4
    )
    assert tokens(credited(step, section))[key("a")] == [7.0, 7.0, 4.0]


def test_gae_of_a_penalised_reward():
    """Fails if the penalty is taken off the advantage of its own token alone, or forgotten."""
    step, section = build(group(row("a", mask="101", reward=1.0)), **GAE, **KL, gamma=0.5, lam=0.5)
    done = credited(step, section, old=lambda _k, i: 1.0 + i, values=lambda _k, i: float(i))
    # r = -1/2 and 1 - 3/2; V = 0 and 2; deltas -1/2 + 1/2 * 2 - 0 and -1/2 - 2.
    assert tokens(done)[key("a")] == [0.5 + 0.25 * -2.5, -2.5]
    assert done.returns[key("a")].tolist() == [0.5 + 0.25 * -2.5, 0.0, -0.5]
    assert done.metrics.result()["batch/return_mean"] == (0.5 + 0.25 * -2.5 - 0.5) / 2


# KL in the reward


def test_the_penalty_is_credited_to_the_tokens_before_it():
    """A_t = A - coef sum_(t' >= t) kl. Fails if a token pays for what was before it."""
    step, section = build(
        group(row("a", mask="1101", reward=1.0), row("b", mask="1")),
        advantage_estimator="reinforce_baseline", **KL,
    )  # fmt: skip
    kl = {("a", 0): 0.25, ("a", 1): -0.5, ("a", 3): 1.0, ("b", 0): 0.125}
    done = credited(step, section, old=lambda k, i: kl.get((k.rollout_id, i), 0.0) - 1.0, ref=-1.0)
    assert tokens(done) == {
        key("a"): [0.5 - 0.375, 0.5 - 0.25, 0.5 - 0.5],
        key("b"): [-0.5 - 0.0625],
    }
    k3 = sum(math.exp(-d) - 1 + d for d in kl.values())
    assert done.metrics.result()["kl"] == pytest.approx(k3 / 4)


def test_the_coefficient_is_the_one_of_the_controller():
    step, section = build(group(row("a", mask="1")), advantage_estimator="reinforce", **KL)
    assert tokens(credited(step, section, old=1.0, kl_coef=0.25)) == {key("a"): [-0.25]}


def test_reinforce_discounts_by_trained_token_and_skips_the_environment():
    """FORMULAS F9. Fails (gamma^3) if environment tokens are discounted."""
    step, section = build(
        group(row("a", mask="11001", reward=8.0)),
        advantage_estimator="reinforce", gamma=0.5, whiten_advantages=False, **KL,
    )  # fmt: skip
    done = credited(step, section, old=1.0)
    kl = [-0.5 * (1 + 0.5 + 0.25), -0.5 * (1 + 0.5), -0.5]
    assert tokens(done)[key("a")] == [2 + kl[0], 4 + kl[1], 8 + kl[2]]
    plain, _ = build(
        group(row("a", mask="11001", reward=8.0)),
        advantage_estimator="reinforce", gamma=0.5, whiten_advantages=False,
    )  # fmt: skip
    assert plain.credit is None
    assert tokens(plain)[key("a")] == [2.0, 4.0, 8.0]


def test_group_estimators_do_not_discount_a_whole_rollout():
    step, _ = build(group(row("a", mask="11", reward=1.0), row("b")), gamma=0.5)
    assert tokens(step)[key("a")] == [0.5, 0.5]


# Returns-to-go


def test_each_turn_has_its_return_to_go_and_the_penalty_its_discount_by_turn():
    mask = "11011"
    rows = (
        row("a", mask=mask, reward=5.0, turns=turns(mask, 1.0, 4.0)),
        row("b", mask="1", reward=1.0, turns=turns("1", 1.0)),
    )
    plain, _ = build(group(*rows), turn_rewards="return_to_go", gamma=0.5)
    # Whole returns 1 + 4/2 = 3 and 1, mean 2.
    assert tokens(plain) == {key("a"): [1.0, 1.0, 2.0, 2.0], key("b"): [-1.0]}
    assert plain.advantages == {"a": 1.5, "b": -1.0}
    step, section = build(group(*rows), turn_rewards="return_to_go", gamma=0.5, **KL)
    penalty = [0.5 * (1 + 1 + 0.5 * 2), 0.5 * (1 + 0.5 * 2), 0.5 * 2, 0.5]
    assert tokens(credited(step, section, old=1.0))[key("a")] == [
        a - p for a, p in zip([1.0, 1.0, 2.0, 2.0], penalty, strict=True)
    ]


def test_what_shaping_took_off_stands_at_the_last_turn_of_all_rows():
    rows = (
        row("a", mask="10", reward=2.0, turns=turns("10", 1.0)),
        row("a", mask="1", reward=2.0, row_index=1, turns=turns("1", 4.0)),
        row("b", mask="1", reward=0.0, turns=turns("1", None)),
    )
    step, _ = build(group(*rows), turn_rewards="return_to_go", advantage_estimator="reinforce")
    assert tokens(step) == {key("a", 0): [2.0], key("a", 1): [1.0]}
    assert step.advantages == {"a": 1.5, "b": 0.0}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (row("a", mask="11"), "no assistant turn"),
        (row("a", mask="11", turns=turns("1", 0.0)), r"a\[0\]: response position 1 was sampled"),
        (row("a", mask="1", turns=turns("1", math.nan)), "reward of turn 0 is nan"),
    ],
)
def test_turns_that_do_not_fit_are_named(made, message):
    with pytest.raises(DataError, match=message):
        build(group(made), turn_rewards="return_to_go", advantage_estimator="reinforce")


# Order of the blocks


def test_the_shaped_reward_is_clipped_before_the_penalty():
    rows = (row("a", mask="1", reward=9.0), row("b", mask="1", reward=-9.0))
    step, section = build(group(*rows), clip_shaped=(-2.0, 3.0), **KL)
    done = credited(step, section, old=lambda k, _i: 8.0 if k.rollout_id == "a" else 0.0)
    assert tokens(done) == {key("a"): [3.0 - 4.0], key("b"): [-2.0]}


def test_whitening_comes_last_and_weighs_tokens():
    """Fails if rollouts are weighed instead: mean -0.2 for 0."""
    rows = (row("a", mask="1101", reward=1.0), row("b", mask="11"))
    step, _ = build(group(*rows), whiten_advantages=True)
    mean = (3 * 0.5 - 2 * 0.5) / 5
    variance = (3 * (0.5 - mean) ** 2 + 2 * (-0.5 - mean) ** 2) / 4
    want = {name: (a - mean) / math.sqrt(variance + 1e-8) for name, a in (("a", 0.5), ("b", -0.5))}
    assert tokens(step)[key("a")] == pytest.approx([want["a"]] * 3)
    assert step.advantages == pytest.approx(want)
    shifted, _ = build(group(*rows), whiten_advantages="mean")
    assert shifted.advantages == pytest.approx({"a": 0.5 - mean, "b": -0.5 - mean})
    pending, section = build(group(*rows), whiten_advantages=True, **KL)
    done = credited(pending, section, old=lambda k, i: float(k.rollout_id == "a" and i == 3))
    # 0, 0, 0 and -1/2, -1/2 once the penalty of 1/2 has been credited: mean -0.2, variance 0.075.
    scale = 1 / math.sqrt(0.075 + 1e-8)
    assert done.advantages == pytest.approx({"a": 0.2 * scale, "b": -0.3 * scale})


def test_returns_are_taken_before_whitening():
    settings_ = {**GAE, "whiten_advantages": True}
    step, section = build(
        group(row("a", mask="1", reward=3.0), row("b", mask="1", reward=1.0)), **settings_
    )
    done = credited(step, section, values=0.5)
    assert [done.returns[key(name)].tolist() for name in "ab"] == [[3.0], [1.0]]
    assert done.advantages == pytest.approx({"a": math.sqrt(0.5), "b": -math.sqrt(0.5)})


# The open batch


def test_an_open_batch_keeps_every_row_and_travels():
    rows = (row("a", reward=1.0), row("b", reward=1.0))
    step, section = build(group(*rows), epochs=2, **KL)
    assert tokens(step) == {key("a"): [0.0] * 3, key("b"): [0.0] * 3}
    assert step.advantages == {"a": 0.0, "b": 0.0}
    assert step.metrics.result()["batch/rows_trained"] == 2
    assert "batch/advantage_abs_mean" not in step.metrics.result()
    done = credited(pickle.loads(pickle.dumps(step)), section, old=1.0)
    assert tokens(done) == tokens(credited(step, section, old=1.0))
    for update in done.updates:  # every epoch
        assert all(micro.advantages_R[micro.mask_R].all() for micro in update.micro_batches)
    assert done.metrics.result() == {
        "kl": pytest.approx(math.exp(-1)),
        "batch/advantage_mean": -1.0,
        "batch/advantage_abs_mean": 1.0,
    }
    with pytest.raises(DataError, match="final already"):
        compute_credit(done, old=None, ref=None, values=None, kl_coef=0.0, algorithm=section)


def test_an_open_batch_says_what_the_rewards_alone_leave():
    rows = (row("a", reward=3.0), row("b", reward=1.0))
    held, _ = build(group(*rows), whiten_advantages=True, **KL)
    assert held.advantages == {"a": 1.0, "b": -1.0}


def test_kl_in_the_loss_leaves_nothing_open():
    step, _ = build(group(row("a", reward=1.0), row("b")), kl_coef=0.5)
    assert step.credit is None
    assert step.advantages == {"a": 0.5, "b": -0.5}


def test_rows_that_share_a_prefix_get_their_own_advantages():
    rows = [row(name, mask="1101", reward=float(i)) for i, name in enumerate("abc")]
    alone, section = build(group(*rows), **KL)
    shared, _ = build(group(*rows), prefix_sharing=True, **KL)
    apart = {"old": lambda k, i: ord(k.rollout_id) + i / 8.0}
    assert tokens(credited(shared, section, **apart)) == tokens(credited(alone, section, **apart))


def test_response_positions_of_rows_may_come_in_turns():
    """Fails if advantages are laid out row after row."""
    step, section = build(
        group(row("a", mask="111", reward=1.0), row("b", mask="11")), prefix_sharing=True, **KL
    )
    (update,) = step.updates
    (micro,) = update.micro_batches
    places = np.array([0, 3, 1, 4, 2])  # a b a b a
    names = [name for name in micro.__slots__ if name.endswith("_R")]
    mixed = replace(micro, **{name: getattr(micro, name)[places] for name in names})
    turned = replace(step, updates=(replace(update, micro_batches=(mixed,)),))
    apart = {"old": lambda k, i: ord(k.rollout_id) + i / 8.0}
    assert tokens(credited(turned, section, **apart)) == tokens(credited(step, section, **apart))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"old": None}, "needs `old`, got None"),
        ({"ref": None}, "needs `ref`, got None"),
        ({"values": None}, "needs `values`, got None"),
        ({"values": {}}, r"a\[0\] has 3 response positions, `values` has none"),
        ({"values": {key("a"): np.zeros(4)}}, r"a\[0\] has 3 response positions, `values` has 4"),
        (
            {"old": {key("a"): np.array([0.0, 0.0, math.nan])}},
            r"`old` is nan at .* 2 of row a\[0\]",
        ),
        ({"ref": {key("a"): np.array([-math.inf, 0.0, 0.0])}}, r"`ref` is -inf at .* 0 of row a"),
    ],
)
def test_numbers_that_are_missing_or_no_numbers_are_named(changes, message):
    step, section = build(group(row("a", mask="101")), **GAE, **KL)
    good = {name: numbers(step, 0.0) for name in ("old", "ref", "values")}
    with pytest.raises(DataError, match=message):
        compute_credit(step, **{**good, **changes}, kl_coef=0.5, algorithm=section)


# Masked positions, order and cuts


def several_groups(split=False):
    """Uneven groups, a singleton, environment spans, a stale token and a rollout of two turns."""
    mask = "1100110"
    whole = row("a", mask=mask, reward=0.75, turns=turns(mask, 0.5, 0.25))
    parts = (
        row("a", mask="1100", reward=0.75, turns=turns("1100", 0.5)),
        row(
            "a", mask="110", reward=0.75, row_index=1, turns=turns("110", 0.25),
            prompt_ids=(1, 2, 3, 10, 11, 12, 13),
        ),
    )  # fmt: skip
    old = row(
        "b", mask="1011", reward=0.5, turns=turns("1011", 0.0, 0.5), policy_versions=(1, -1, 5, 5)
    )
    return [
        group(*(parts if split else (whole,)), old, row("c", mask="1", turns=turns("1", None))),
        group(row("d", group="h", mask="11", reward=2.0, turns=turns("11", 2.0))),
        group(
            row("e", group="i", mask="101", reward=1.0, turns=turns("101", 1.0, 0.0)),
            row("f", group="i", mask="011", reward=0.3, turns=turns("011", 0.3)),
        ),
    ]


def every_way(groups, estimator, turn_rewards, fill=None, **changes):
    """Advantages and returns with KL in the reward and whitening, as bytes by rollout."""
    step, section = build(
        *groups,
        advantage_estimator=estimator, turn_rewards=turn_rewards, whiten_advantages=True,
        gamma=0.9, oldest_version=0 if fill is None else fill, **KL, **changes,
    )  # fmt: skip

    def wave(scale):
        """Numbers of the i-th trained token of a rollout, whatever row it is in."""
        out = {}
        for rows in step.credit.rollouts:
            count = 0
            for part in rows:
                array = np.full(len(part.mask_R), np.nan)
                for place in np.flatnonzero(part.mask_R):
                    array[place] = scale * math.sin(1 + count + ord(part.key.rollout_id))
                    count += 1
                out[part.key] = array
        return out

    done = compute_credit(
        step, old=wave(0.5), ref=wave(0.25), values=wave(1.0), kl_coef=0.1, algorithm=section
    )
    returns = {} if done.returns is None else {k: v.tobytes() for k, v in done.returns.items()}
    return by_rollout(done), returns, step, section


@pytest.mark.parametrize("turn_rewards", ["sum", "return_to_go"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_rollout_cut_into_rows_has_the_same_advantages(estimator, turn_rewards):
    """To the last bit. Fails if a row is a unit in baseline, chain, discount or whitening."""
    whole, _, step, _ = every_way(several_groups(), estimator, turn_rewards)
    parts, _, cut, _ = every_way(several_groups(split=True), estimator, turn_rewards)
    assert parts == whole
    assert len(cut.updates[0].micro_batches[0].rows) == 1 + len(
        step.updates[0].micro_batches[0].rows
    )


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 3), st.floats(-2, 2), st.booleans()),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(ESTIMATORS),
    st.sampled_from(["sum", "return_to_go"]),
)
def test_any_cut_at_turns_gives_the_same_advantages(plan, estimator, turn_rewards):
    """A turn: sampled tokens, environment tokens, reward, and whether a new row follows it."""
    reward = sum(earned for _, _, earned, _ in plan)
    mask = "".join("1" * mine + "0" * theirs for mine, theirs, _, _ in plan)
    whole = row("a", mask=mask, reward=reward, turns=turns(mask, *(turn[2] for turn in plan)))
    parts, start, held = [], "", []
    for number, (mine, theirs, earned, cut) in enumerate(plan):
        start, held = start + "1" * mine + "0" * theirs, [*held, earned]
        if cut or number == len(plan) - 1:
            index = len(parts)
            made = turns(start, *held)
            parts.append(row("a", mask=start, reward=reward, row_index=index, turns=made))
            start, held = "", []
    sibling = row("b", mask="11", reward=0.25, turns=turns("11", 0.25))
    want, _, _, _ = every_way([group(whole, sibling)], estimator, turn_rewards)
    got, _, _, _ = every_way([group(*parts, sibling)], estimator, turn_rewards)
    assert got == want


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.floats(-2, 2), st.integers(0, 2)), min_size=1, max_size=6
    ),
    st.sampled_from(ESTIMATORS),
    st.sampled_from(["sum", "return_to_go"]),
)
def test_rows_that_forked_count_in_the_order_of_time(plan, estimator, turn_rewards):
    """A turn: sampled tokens, reward, and the conversation that it belongs to. Fails if the row of
    the last turn, which comes first, is taken for what was said first."""
    reward = sum(earned for _, earned, _ in plan)
    order = list(dict.fromkeys(where for _, _, where in reversed(plan)))
    sizes = [size for size, _, _ in plan]
    ends = np.cumsum([0, *sizes])
    each = [
        row("a", mask="1" * size, reward=reward, row_index=number, turns=turns("1" * size, earned))
        for number, (size, earned, _) in enumerate(plan)
    ]
    forked, requests, tokens_of = [], {}, {}
    for index, where in enumerate(order):
        mine = [number for number, turn in enumerate(plan) if turn[2] == where]
        mask = "0".join("1" * sizes[number] for number in mine)
        made = turns(mask, *(plan[number][1] for number in mine))
        forked.append(row("a", mask=mask, reward=reward, row_index=index, turns=made))
        for place, number in enumerate(mine):
            requests[number] = AgentRequest(row=index, turn=2 * place)
        times = [time for number in mine for time in range(ends[number], ends[number + 1])]
        places = [place for place, bit in enumerate(mask) if bit == "1"]
        tokens_of[key("a", index)] = dict(zip(places, times, strict=True))
    named = tuple(requests[number] for number in range(len(plan)))
    forked[0] = replace(forked[0], requests=named)
    sibling = row("b", mask="11", reward=0.25, turns=turns("11", 0.25))

    def by_time(rows, times):
        """Advantages of the rollout's tokens, in time."""
        step, section = build(
            group(*rows, sibling),
            advantage_estimator=estimator, turn_rewards=turn_rewards, gamma=0.9, lam=0.7,
            whiten_advantages=False, **KL,
        )  # fmt: skip

        def wave(scale):
            return lambda name, place: scale * math.sin(times.get(name, {}).get(place, place))

        done = credited(step, section, old=wave(0.5), ref=wave(0.25), values=wave(1.0))
        found = tokens(done)
        pairs = [zip(times[name].values(), found[name], strict=True) for name in times]
        return [advantage for _, advantage in sorted(chain.from_iterable(pairs))], done.advantages

    in_time = {
        key("a", number): dict(enumerate(range(ends[number], ends[number + 1])))
        for number in range(len(plan))
    }
    want = by_time(each, in_time)
    got = by_time(forked, tokens_of)
    assert got[0] == pytest.approx(want[0], abs=1e-12)
    assert got[1] == pytest.approx(want[1], abs=1e-12)


def test_an_order_that_leaves_out_a_turn_is_refused():
    rows = [
        row("a", mask="1", turns=turns("1", 1.0), requests=(AgentRequest(row=0, turn=0),)),
        row("a", mask="1", row_index=1, turns=turns("1", 0.0)),
    ]
    with pytest.raises(DataError, match=r"a\[1\]: turn 0 is in none of the 1 requests"):
        build(group(*rows), turn_rewards="return_to_go", advantage_estimator="reinforce")


@settings(max_examples=15, deadline=None)
@given(st.randoms(), st.sampled_from(ESTIMATORS), st.sampled_from(["sum", "return_to_go"]))
def test_the_order_of_groups_siblings_and_rows_does_not_matter(rng, estimator, turn_rewards):
    groups = several_groups(split=True)
    want, want_returns, _, _ = every_way(groups, estimator, turn_rewards)
    rng.shuffle(groups)
    shuffled = []
    for part in groups:
        rows = list(part.trajectories)
        rng.shuffle(rows)
        shuffled.append(group(*rows))
    got, got_returns, _, _ = every_way(shuffled, estimator, turn_rewards, tokens=16)
    assert got == want
    assert got_returns == want_returns


@pytest.mark.parametrize("poison", [math.nan, 1e4, -math.inf])
@pytest.mark.parametrize("turn_rewards", ["sum", "return_to_go"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_nothing_at_masked_positions_is_read(estimator, turn_rewards, poison):
    """Bit-equal. Fails if any array is summed or multiplied by a mask instead of picked by it."""

    def spoiled(made):
        masked = [bit == 0 for bit in made.response_mask]
        log_probs = [
            poison if m else v for m, v in zip(masked, made.rollout_log_probs, strict=True)
        ]
        ids = [4321 if m else v for m, v in zip(masked, made.response_ids, strict=True)]
        fields = {name: getattr(made, name) for name in made.__slots__}
        fields |= {"rollout_log_probs": tuple(log_probs), "response_ids": tuple(ids)}
        return type(made)(**fields)

    clean, clean_returns, step, section = every_way(
        several_groups(), estimator, turn_rewards, fill=4
    )
    dirty = [group(*(spoiled(made) for made in part.trajectories)) for part in several_groups()]
    got, got_returns, _, _ = every_way(dirty, estimator, turn_rewards, fill=4)
    assert got == clean
    assert got_returns == clean_returns
    asked = {name: numbers(step, 0.5) for name in ("old", "ref", "values")}
    bad = {
        name: {k: np.where(np.isnan(v), poison, v) for k, v in rows.items()}
        for name, rows in asked.items()
    }
    one, two = (
        compute_credit(step, **given_, kl_coef=0.1, algorithm=section) for given_ in (asked, bad)
    )
    assert tokens(one) == tokens(two)
    assert one.metrics.result() == two.metrics.result()
    assert one.advantages == two.advantages
    if one.returns is not None:
        assert {k: v.tolist() for k, v in one.returns.items()} == {
            k: v.tolist() for k, v in two.returns.items()
        }
