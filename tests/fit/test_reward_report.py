"""`agentrl rm`: a reward model of a real fit, measured, its scale stored, and files scored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agentrl.disk.checkpoint import resolve_model_path
from agentrl.errors import ConfigError, DataError
from agentrl.fit.data.preferences.load import load_pairs
from agentrl.fit.rating.answers import encode_answer
from agentrl.fit.rating.reward_model import open_reward_model
from agentrl.fit.rating.reward_report import measure_reward_model
from agentrl.fit.rating.scored_pairs import (
    NamedPairs,
    encode_pairs,
    halves_by_prompt,
    score_pairs,
)
from agentrl.reward.posterior import POSTERIOR_FILE, HeadPosterior
from agentrl.reward.probes import PROBES
from agentrl.reward.scale import SCALE_FILE, RewardScale
from agentrl.reward.temperature import fit_temperature
from agentrl.train.score_model import load_score_model
from agentrl.types import Completion, Message, PreferencePair
from tests.fit.fit_project import write_rows
from tests.fit.vowel_model import write_vowel_model
from tests.runtime.tiny_project import agentrl


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vowel_model(tmp_path_factory.mktemp("rm"))


@pytest.fixture(scope="module")
def folder(run: Path) -> Path:
    return run.parent.parent


def named(path: Path) -> NamedPairs:
    return NamedPairs(name=path.name, pairs=load_pairs(str(path)))


def test_a_report_says_what_a_model_is_worth_and_stores_its_scale(run, folder, tmp_path) -> None:
    """Fails if the scale is that of other data, or if the temperature is not the one in the
    scale."""
    words = [run, "--data", folder / "held.jsonl", "--calibrate-on", folder / "other.jsonl"]
    status, text = agentrl(
        tmp_path / "out.log", "rm", "report", *words, "--store", "--out", tmp_path / "made"
    )
    assert status == 0, text
    assert (tmp_path / "made" / "report.md").read_text() in text
    report = json.loads((tmp_path / "made" / "report.json").read_text())
    for name in ("report.json", "report.md", "reliability.svg", "report.html"):
        assert f"wrote {tmp_path / 'made' / name}" in text
    overall = report["calibration"]["overall"]
    # One label of six is wrong, so no model can be right more often than that on average.
    assert 0.7 < overall["after"]["accuracy"] < 0.95
    assert overall["after"]["accuracy_low"] < overall["after"]["accuracy"]
    assert overall["after"]["pairs"] == 60
    # No answer has a second word.
    assert set(report["probes"]) == set(PROBES) - {"one_word"}
    assert all(0 <= each["below"] <= 1 for each in report["probes"].values())
    assert report["calibrated_on"] == f"60 pairs of {folder / 'other.jsonl'}"

    model = open_reward_model(str(run), device="cpu")
    scale = model.stored_scale()
    assert scale is not None
    assert scale == RewardScale(**report["scale"])
    held, other = (score_pairs(model, named(folder / f"{n}.jsonl")) for n in ("held", "other"))
    assert scale.temperature == fit_temperature(other.chosen_NO[:, 0] - other.rejected_NO[:, 0])
    white = scale.normalised(np.concatenate([held.chosen_NO, held.rejected_NO]))
    assert abs(white.mean()) < 1e-9
    assert abs(white.std(ddof=1) - 1) < 1e-9


def test_without_other_pairs_the_temperature_is_that_of_half_of_the_prompts(run, folder) -> None:
    model, data = open_reward_model(str(run), device="cpu"), named(folder / "held.jsonl")
    report = measure_reward_model(model, data, probed=0)
    assert report.calibrated_on == (
        "half of the prompts of held.jsonl (30 pairs); the rest is measured"
    )
    assert report.calibration.overall.after.pairs == 30
    assert report.probes == {}
    first, second = halves_by_prompt(data.pairs, "held")
    prompts = [{repr(data.pairs[index].prompt) for index in half} for half in (first, second)]
    assert not prompts[0] & prompts[1]
    assert sorted([*first, *second]) == list(range(60))


def test_pairs_of_one_prompt_need_others_for_the_temperature(run, folder) -> None:
    data = named(folder / "held.jsonl")
    one = [pair for pair in data.pairs if pair.prompt == data.pairs[0].prompt]
    with pytest.raises(DataError, match="name other pairs with --calibrate-on"):
        halves_by_prompt(one, "held")


def test_probes_that_must_lose_do_lose(run, folder) -> None:
    """Fails if probes are scored on another prompt or not at all: consonants alone lose."""
    model = open_reward_model(str(run), device="cpu")
    data = load_pairs(str(folder / "held.jsonl"))

    def spoken(text: str) -> Completion:
        return Completion(messages=(Message(role="assistant", content=text),))

    # One word of vowels and one of consonants: the first word alone has more vowels.
    pairs = [replace(pair, chosen=spoken("zkq aeiou"), rejected=spoken("zkq")) for pair in data]
    report = measure_reward_model(
        model, NamedPairs(name="x", pairs=pairs),
        calibrate_on=NamedPairs(name="held", pairs=data), probed=10,
    )  # fmt: skip
    assert report.probes["one_word"].below == 1.0
    assert report.probes["one_word"].mean_drop > 0
    assert report.probes["one_word"].pairs == 10
    assert report.calibration.overall.after.accuracy == 1.0


def easy_rows(better: str, worse: str) -> list[dict[str, str]]:
    """Pairs that the model of vowels orders without a doubt."""
    letters = {"chosen": better, "rejected": worse}
    return [
        {"prompt": f"say {n}", **{k: v + v[-1] * n for k, v in letters.items()}} for n in range(8)
    ]


def test_a_model_that_is_always_right_is_scaled_by_a_weak_prior(run, folder, tmp_path) -> None:
    """Fails if pairs that the scores separate leave no scale, or if nobody is told of the prior."""
    path = write_rows(tmp_path / "easy.jsonl", easy_rows("aeiou", "xyzkq"))
    kept = Path(resolve_model_path(str(run))) / SCALE_FILE
    kept.unlink(missing_ok=True)
    status, text = agentrl(
        tmp_path / "out.log", "rm", "report", run, "--data", path, "--store",
        "--out", tmp_path,
    )  # fmt: skip
    assert status == 0, text
    said = "prior: all 4 pairs that differ are ordered right, so T is that of Platt's target 5/6"
    assert said in " ".join(text.split())
    assert said in (tmp_path / "report.md").read_text()
    model = open_reward_model(str(run), device="cpu")
    fitted, _ = halves_by_prompt(load_pairs(str(path)), "easy")
    scored = score_pairs(model, named(path)).part(fitted)
    apart = scored.chosen_NO[:, 0] - scored.rejected_NO[:, 0]
    scale = model.stored_scale()
    assert scale is not None
    # Where the mean slope is 0 the pairs have, weighted by their distance, the target's odds.
    odds = 1 / (1 + np.exp(-apart / scale.temperature))
    assert np.average(odds, weights=apart) == pytest.approx(5 / 6)
    kept.unlink()


def test_a_model_that_is_always_wrong_has_no_temperature_and_no_scale(run, folder, tmp_path):
    path = write_rows(tmp_path / "easy.jsonl", easy_rows("xyzkq", "aeiou"))
    status, text = agentrl(
        tmp_path / "out.log", "rm", "report", run, "--data", path, "--store",
        "--out", tmp_path,
    )  # fmt: skip
    assert status == 2, text
    said = " ".join(text.split())
    assert (
        "--store: there is no scale to store: temperature: 0 of 4 pairs are ordered right" in said
    )
    assert "no temperature: temperature: 0 of 4" in (tmp_path / "report.md").read_text()
    diagram = (tmp_path / "reliability.svg").read_text()
    assert "temperature 1: ECE" in diagram
    assert "fitted temperature" not in diagram


def test_sampled_tokens_are_scored_up_to_the_last_one_of_the_policy(run) -> None:
    """Fails if what the environment adds behind an answer changes its score."""
    model = open_reward_model(str(run), device="cpu")
    more, end = Completion(ids=(5, 6, 7, 8), mask=(1, 1, 0, 0)), Completion(ids=(5, 6), mask=(1, 1))
    pair = PreferencePair(id="p", prompt_ids=(1, 2), chosen=more, rejected=end)
    rows = [encode_answer(model.chat, pair, each) for each in (more, end)]
    assert rows[0] == rows[1]
    assert rows[0].ids == (5, 6)


def test_every_answer_of_a_file_is_scored(run, folder, tmp_path) -> None:
    """Fails if scores are given to other rows, or if a broken row ends the file."""
    RewardScale(temperature=2.0, mean=0.5, std=3.0).save(Path(resolve_model_path(str(run))))
    pairs = folder / "held.jsonl"
    talks = [
        {"id": "a", "messages": [{"role": "user", "content": "say 1"},
                                 {"role": "assistant", "content": "aeiou"}]},
        {"id": "long", "messages": [{"role": "user", "content": "say 1"},
                                    {"role": "assistant", "content": "a" * 300}]},
    ]  # fmt: skip
    asked = {"talks": write_rows(tmp_path / "talks.jsonl", talks), "pairs": pairs}
    found = {}
    for name, path in asked.items():
        out = tmp_path / f"{name}.out"
        words = (path, "--out", out, "--batch-tokens", 200, "--device", "cpu")
        status, text = agentrl(tmp_path / "out.log", "rm", "score", run, *words)
        assert status == (name == "talks"), text
        found[name] = [json.loads(line) for line in out.read_text().splitlines()]
    first, long = found["talks"]
    assert first.keys() == {"id", "score", "reward"}
    assert first["reward"] == pytest.approx((first["score"] / 2.0 - 0.5) / 3.0)
    assert "do not fit into 200" in long["error"]
    wanted = score_pairs(open_reward_model(str(run), device="cpu"), named(pairs))
    assert [line["id"] for line in found["pairs"]] == [pair.id for pair in wanted.pairs]
    for key, scores in (("chosen", wanted.chosen_NO), ("rejected", wanted.rejected_NO)):
        assert np.allclose([line[key] for line in found["pairs"]], scores[:, 0], atol=1e-4)


def test_a_posterior_is_written_and_gives_deviations(run, folder, tmp_path) -> None:
    """Fails if the deviation is of another row, or if it changes the score."""
    checkpoint = Path(resolve_model_path(str(run)))
    held = folder / "held.jsonl"
    words = ("rm", "posterior", run, "--data", held, "--against", folder / "other.jsonl")
    status, text = agentrl(tmp_path / "out.log", *words, "--device", "cpu")
    assert status == 0, text
    assert f"wrote {checkpoint / POSTERIOR_FILE}" in text
    assert "60 pairs decide" in text
    assert "with probability 0." in text
    posterior = HeadPosterior.load(checkpoint)
    plain = open_reward_model(str(run), device="cpu")
    rows = encode_pairs(plain, named(held)).rows
    found = load_score_model(str(checkpoint), device="cpu", posterior=posterior).scores(rows)
    assert np.array_equal(found[:, 0], plain.scores(rows)[:, 0])
    # Rows alone, as their own batch, read the same.
    alone = [load_score_model(str(checkpoint), device="cpu").features([row])[0] for row in rows[:3]]
    assert np.allclose(found[:3, 1], posterior.deviations(np.stack(alone)), rtol=1e-4)
    other = replace(posterior, weight_E=1.001 * posterior.weight_E)
    with pytest.raises(ConfigError, match="is of another head"):
        load_score_model(str(checkpoint), device="cpu", posterior=other)
    (checkpoint / POSTERIOR_FILE).unlink()


def test_a_language_model_is_refused(folder) -> None:
    with pytest.raises(ConfigError, match=r"expected a \.\.\.ForSequenceClassification"):
        open_reward_model(str(folder / "model"))
