"""Rollouts as one page for sharing: no script, no request, readable without this package.

Every text of the run is escaped, characters that do not print are spelled out, and the page's own
policy forbids scripts, so hostile text stays text. The overlays on the tokens are style rules that
follow radio buttons.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from agentrl.data import StoredTrajectory
from agentrl.inspect.read.safe_terminal import number, visible
from agentrl.types import ToolCall, ToolResult, TrainedTokens, Trajectory, Turn

Pieces = Callable[[Sequence[int]], list[str]]
Trained = Callable[[Sequence[StoredTrajectory]], Mapping[int, TrainedTokens]]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_OVERLAYS = {
    "none": "plain",
    "mask": "trained or not",
    "surprise": "surprise of the sampler",
    "gap": "trainer - sampler",
    "entropy": "entropy",
    "advantage": "advantage",
    "clip": "clipped",
}
_SURPRISE_NATS = 6.0
_GAP_NATS = 0.2
_ENTROPY_NATS = 3.0
_ADVANTAGE = 2.0
"""Where the colour of an overlay is full."""
_KEYS = {
    "none": "Open the tokens of a turn below it; point at one for its numbers.",
    "mask": '<b class="t in">trained</b> <b class="t cut">sampled, not trained</b>'
    " What is grey was not sampled.",
    "surprise": f"The stronger, the less likely the sampler held it; full at {_SURPRISE_NATS:g} "
    "nats.",
    "gap": f"The stronger, the further trainer and sampler are apart; full at {_GAP_NATS:g} nats.",
    "entropy": f"The stronger, the less decided the policy was; full at {_ENTROPY_NATS:g} nats.",
    "advantage": f"Green was made likelier, red less likely; full at {_ADVANTAGE:g}.",
    "clip": '<b class="t clipped">clipped</b> A bound of the ratio held it back.',
}
"""What the colours of each overlay say."""


def html_page(
    rollouts: Iterable[Sequence[StoredTrajectory]],
    *,
    run: str = "",
    model: str = "",
    version: str = "",
    pieces: Pieces | None = None,
    trained: Trained = lambda rows: {},
) -> Iterator[str]:
    """The page, piece by piece.

    Args:
        rollouts: the rows of each rollout, in order.
        run: name of the run.
        model: what training began with.
        version: of the agentrl that recorded the run.
        pieces: token ids to the text of each, where there is a tokenizer.
        trained: what the trainer made of the rows of a rollout, by `row_index`.
    """
    style = Path(__file__).with_name("export.css").read_text()
    title = _safe(run) or "rollouts"
    yield (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>\n{style}</style></head>\n<body><h1>{title}</h1>"
        f'<p class="soft">{f"model {_safe(model)}, " if model else ""}'
        f"recorded by agentrl {_safe(version)}</p>\n{_switches()}\n"
    )
    for rows in rollouts:
        yield from _rollout(rows, pieces, trained(rows))
    yield "</body></html>\n"


def _switches() -> str:
    buttons = "".join(
        f'<label><input type="radio" name="overlay" id="o-{key}"'
        f"{' checked' if key == 'none' else ''}> {text}</label>"
        for key, text in _OVERLAYS.items()
    )
    keys = "".join(f'<p class="key k-{key}">{text}</p>' for key, text in _KEYS.items())
    return (
        f'<div class="switches"><fieldset><legend>Tokens coloured by</legend>{buttons}</fieldset>'
        f"{keys}</div>"
    )


def _rollout(
    rows: Sequence[StoredTrajectory], pieces: Pieces | None, trained: Mapping[int, TrainedTokens]
) -> Iterator[str]:
    first, last = rows[0], rows[-1].trajectory
    facts = {
        "reward": number(last.reward),
        **{f"- {name}": number(value) for name, value in last.reward_parts.items()},
        "score": number(last.score),
        "advantage": number(first.advantage, sign=True),
        "ended by": last.termination.value,
        "sampled": f"{sum(row.trajectory.num_action_tokens for row in rows)} tokens",
        "temperature": number(last.temperature),
        "took": f"{last.duration_s:.1f} s",
    }
    yield (
        f"<article><h2>{_safe(last.task_id)}</h2>"
        f'<p class="soft">{_safe(first.kind)} step {first.step}, rollout '
        f'{_safe(last.rollout_id)}, group {_safe(last.group_id)}</p><div class="facts num">'
        + "".join(
            f"<span>{_safe(name)} <b>{_safe(value)}</b></span>" for name, value in facts.items()
        )
        + "</div>\n"
    )
    if last.termination_detail:
        yield f"<pre>{_safe(last.termination_detail)}</pre>\n"
    for stored in rows:
        trajectory = stored.trajectory
        if len(rows) > 1:
            yield f"<p><b>Row {trajectory.row_index + 1} of {len(rows)}</b></p>\n"
        yield from _row(trajectory, pieces, trained.get(trajectory.row_index))
    yield "</article>\n"


def _row(
    trajectory: Trajectory, pieces: Pieces | None, trained: TrainedTokens | None
) -> Iterator[str]:
    prompt = trajectory.prompt_text
    if not prompt and pieces is not None:
        prompt = "".join(pieces(trajectory.prompt_ids))
    yield (
        f'<section class="user"><span class="role">prompt</span><span class="soft num">'
        f"{len(trajectory.prompt_ids)} tokens</span><pre>{_safe(prompt)}</pre></section>\n"
    )
    for index, turn in enumerate(trajectory.turns):
        yield from _turn(index, turn, trajectory, pieces, trained)
    if not trajectory.turns and trajectory.response_ids:
        yield from _tokens(trajectory, 0, len(trajectory.response_ids), pieces, trained)


def _turn(
    index: int,
    turn: Turn,
    trajectory: Trajectory,
    pieces: Pieces | None,
    trained: TrainedTokens | None,
) -> Iterator[str]:
    facts = [f"turn {index}", f"{turn.end - turn.start} tokens", f"{turn.duration_s:.2f} s"]
    if turn.finish_reason is not None:
        facts.append(turn.finish_reason.value)
    if turn.reward is not None:
        facts.append(f"reward {number(turn.reward)}")
    role = _safe(turn.role)
    yield (
        f'<section class="{role}"><span class="role">{role}</span><span class="soft num">'
        f"{_safe(', '.join(facts))}</span><pre>{_safe(turn.text)}</pre>"
    )
    yield from (_call(call) for call in turn.tool_calls)
    yield from (_result(result, turn) for result in turn.tool_results)
    if turn.end > turn.start:
        yield from _tokens(trajectory, turn.start, turn.end, pieces, trained)
    yield "</section>\n"


def _call(call: ToolCall) -> str:
    good = "yes" if call.status.value == "ok" else "no"
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False, indent=1, default=repr)
    error = f'<pre class="no">{_safe(call.error)}</pre>' if call.error else ""
    return (
        f'<div class="call">call <b>{_safe(call.name or "(no name)")}</b> '
        f'<span class="{good}">{_safe(call.status.value)}</span>'
        f"<details><summary>arguments</summary><pre>{_safe(arguments)}</pre></details>{error}</div>"
    )


def _result(result: ToolResult, turn: Turn) -> str:
    good = "yes" if result.status.value == "ok" else "no"
    shortened = ", shortened" if result.truncated else ""
    # What the turn already shows is not shown twice.
    text = "" if result.text in turn.text else f"<pre>{_safe(result.text)}</pre>"
    return (
        f'<div class="call">result of <b>{_safe(result.name or "(no name)")}</b> '
        f'<span class="{good}">{_safe(result.status.value)}</span> '
        f'<span class="soft num">{result.duration_s:.2f} s{shortened}</span>{text}</div>'
    )


def _tokens(
    trajectory: Trajectory,
    start: int,
    end: int,
    pieces: Pieces | None,
    trained: TrainedTokens | None,
) -> Iterator[str]:
    ids = trajectory.response_ids[start:end]
    texts = pieces(ids) if pieces is not None else [f"{token} " for token in ids]
    yield f'<details><summary>{end - start} tokens</summary><pre class="tokens">'
    for position, text in zip(range(start, end), texts, strict=True):
        yield _token(trajectory, position, text, trained)
    yield "</pre></details>"


def _token(trajectory: Trajectory, position: int, text: str, trained: TrainedTokens | None) -> str:
    facts = [f"position {position}", f"id {trajectory.response_ids[position]}"]
    if not trajectory.response_mask[position]:
        return f'<span class="t env" title="{"; ".join(facts)}; environment">{_safe(text)}</span>'
    sampler = trajectory.rollout_log_probs[position]
    facts += [f"weights {trajectory.policy_versions[position]}", f"sampler {sampler:.4f}"]
    levels = {"l": -sampler / _SURPRISE_NATS}
    kinds = ["t"]
    if trained is not None:
        # Behind the last trained token of a row nothing is recorded.
        known = position < len(trained.trained)
        kinds.append("in" if known and trained.trained[position] else "cut")
        facts.append("trained" if kinds[-1] == "in" else "not trained")
        if known:
            facts += _trained_facts(trained, position, sampler)
            advantage = trained.advantages[position]
            levels |= {
                "g": abs(trained.old_log_probs[position] - sampler) / _GAP_NATS,
                "e": trained.entropy[position] / _ENTROPY_NATS,
                "p": advantage / _ADVANTAGE,
                "n": -advantage / _ADVANTAGE,
            }
            if trained.clip[position]:
                kinds.append("clipped")
    style = ";".join(f"--{name}:{_percent(value)}" for name, value in levels.items() if value > 0)
    return (
        f'<span class="{" ".join(kinds)}" style="{style}" title="{"; ".join(facts)}">'
        f"{_safe(text)}</span>"
    )


def _trained_facts(trained: TrainedTokens, position: int, sampler: float) -> list[str]:
    old, new = trained.old_log_probs[position], trained.log_probs[position]
    return [
        f"trainer {old:.4f}",
        f"gap {old - sampler:+.4f}",
        f"after updates {new:.4f}",
        f"entropy {trained.entropy[position]:.3f}",
        f"advantage {trained.advantages[position]:+.4f}",
        f"correction {trained.correction[position]:.4f}",
        f"clip {trained.clip[position]}",
        f"loss {trained.loss[position]:.3g}",
    ]


def _percent(value: float) -> int:
    return round(100 * min(1.0, value))


def _safe(text: str) -> str:
    """Text as a page may hold it, in an element or a quoted attribute."""
    return html.escape(visible(text).plain, quote=True)
