"""Log-probabilities of a reference are computed once, and only used for what they were made of."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.batch.examples import CHOSEN
from agentrl.batch.update_terms import mismatches_of
from agentrl.config.fit import FitConfig
from agentrl.disk.run_name import REFERENCE_FILE
from agentrl.errors import RunError
from agentrl.fit.model import reference_section
from agentrl.fit.reference import reference_sums
from agentrl.machine.processes.stop import Interrupted
from agentrl.train.reference import Reference
from tests.fit.losses.fit_examples import examples, summed
from tests.train.tiny_llama import tiny_model


class Counted:
    """A reference that counts how often it is opened."""

    def __init__(self):
        self.opened = 0

    def __call__(self):
        self.opened += 1
        return Reference(tiny_model()).row_log_probs


def ask(folder: Path, data, opened, *, model="tiny", on_progress=lambda done, total: None):
    return reference_sums(
        folder, data, model=model, micro_batch_tokens=64, prefix_sharing=True,
        open_reference=opened, on_progress=on_progress,
    )  # fmt: skip


def test_sums_are_those_of_the_model_and_are_computed_once(tmp_path):
    """Fails if a token of the environment is in a sum, or the file rounds."""
    data, opened = examples(6, pairs=True), Counted()
    found = ask(tmp_path, data, opened)
    wanted = summed(tiny_model(), data)
    assert found.keys() == wanted.keys()
    assert all(found[key] == pytest.approx(wanted[key], abs=1e-10) for key in wanted)
    assert ask(tmp_path, data, opened) == found
    assert opened.opened == 1


def changed(data, what):
    first = data[0]
    if what == "prompt":
        first = replace(first, prompt_ids=(*first.prompt_ids, 5))
    elif what == "mask":
        answer = first.answers[CHOSEN]
        longer = replace(answer, ids=(*answer.ids, 5), mask=(*answer.mask, 1))
        first = replace(first, answers=(longer, *first.answers[1:]))
    elif what == "swapped":
        first = replace(first, answers=first.answers[::-1])
    return [first, *data[1:]]


@pytest.mark.parametrize(("what", "times"), [("prompt", 2), ("mask", 2), ("swapped", 1)])
def test_other_tokens_are_computed_again(tmp_path, what, times):
    """Fails if a number is found by the place of its row: answers that changed places are there."""
    data, opened = examples(4, pairs=True), Counted()
    ask(tmp_path, data, opened)
    other = changed(data, what)
    found = ask(tmp_path, other, opened)
    assert opened.opened == times
    wanted = summed(tiny_model(), other)
    assert all(found[key] == pytest.approx(wanted[key], abs=1e-10) for key in wanted)


def test_another_model_is_asked_again(tmp_path):
    data, opened = examples(4, pairs=True), Counted()
    ask(tmp_path, data, opened)
    ask(tmp_path, data, opened, model="tiny, trained further")
    assert opened.opened == 2


@pytest.mark.parametrize("damage", ["torn", "empty", "no parquet", "a bit"])
def test_a_damaged_file_is_made_again(tmp_path, damage):
    data, opened = examples(4, pairs=True), Counted()
    found = ask(tmp_path, data, opened)
    path = tmp_path / REFERENCE_FILE
    whole = path.read_bytes()
    middle = bytearray(whole)
    middle[40] ^= 255
    path.write_bytes(
        {"torn": whole[:-20], "empty": b"", "no parquet": b"text", "a bit": bytes(middle)}[damage]
    )
    assert ask(tmp_path, data, opened) == found
    assert opened.opened == 2
    assert path.read_bytes() == whole


def test_what_is_given_up_at_once_leaves_nothing(tmp_path):
    def stop(done, total):
        raise Interrupted(2)

    with pytest.raises(Interrupted):
        ask(tmp_path, examples(4, pairs=True), Counted(), on_progress=stop)
    assert list(tmp_path.iterdir()) == []


class Asked(Counted):
    """Counts the rows that it is asked about, too."""

    def __init__(self):
        super().__init__()
        self.rows = 0

    def __call__(self):
        known = super().__call__()

        def count(micros):
            self.rows += sum(len(micro.rows) for micro in micros)
            return known(micros)

        return count


def test_a_pass_that_ends_early_goes_on_where_it_was(tmp_path):
    """Fails if answers are computed again, or come out with other bits than in one pass."""
    data, opened = examples(600, pairs=True), Asked()
    (tmp_path / "whole").mkdir()
    whole = ask(tmp_path / "whole", data, Asked())

    def stop(done, total):
        assert total == 1200
        if done:
            raise Interrupted(2)

    with pytest.raises(Interrupted):
        ask(tmp_path, data, opened, on_progress=stop)
    assert opened.rows == 512
    assert ask(tmp_path, data, opened) == whole
    assert opened.rows == 1200
    assert opened.opened == 2
    made = (tmp_path / REFERENCE_FILE, tmp_path / "whole" / REFERENCE_FILE)
    assert made[0].read_bytes() == made[1].read_bytes()


def test_a_pass_that_is_killed_has_written_what_it_had(tmp_path):
    """Fails if a file comes only at the end: a killed process writes nothing more."""
    data, kept = examples(600, pairs=True), []

    def look(done, total):
        path = tmp_path / REFERENCE_FILE
        kept.append(path.read_bytes() if path.exists() else b"")

    reference_sums(
        tmp_path, data, model="tiny", micro_batch_tokens=64, prefix_sharing=True,
        open_reference=Counted(), on_progress=look, every_s=0.0,
    )  # fmt: skip
    assert [bool(each) for each in kept] == [False, True, True]
    (tmp_path / REFERENCE_FILE).write_bytes(kept[1])
    opened = Asked()
    ask(tmp_path, data, opened)
    assert opened.rows == 1200 - 512


def test_mismatched_answers_are_asked_about_too(tmp_path):
    data = [replace(e, desirable=True) for e in examples(4, pairs=False)]
    made = mismatches_of(data, longest=64)
    found = reference_sums(
        tmp_path, data, made, model="tiny", micro_batch_tokens=64, prefix_sharing=True,
        open_reference=Counted(), on_progress=lambda done, total: None,
    )  # fmt: skip
    for each in made:
        row = replace(each.prompt, answers=each.answered.answers)
        (wanted,) = summed(tiny_model(), [row]).values()
        assert found[each.key] == pytest.approx(wanted, abs=1e-10)
    assert len(found) == 8


def test_a_full_disk_is_one_message(tmp_path):
    # A file-size limit is the nearest thing to a full disk that needs no root.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))
    try:
        with pytest.raises(RunError, match="could not be written"):
            ask(tmp_path, examples(4, pairs=True), Counted())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_the_path_of_a_reference_starts_at_the_fit_file(tmp_path: Path) -> None:
    """Fails ("./old") if it starts at the working directory."""
    (tmp_path / "old").mkdir()
    objective = {"kind": "dpo", "reference": "./old"}
    config = FitConfig.model_validate({"data": {"source": "x"}, "objective": objective})
    found = reference_section(config, base=tmp_path)
    assert found is not None
    assert found.path == str(tmp_path / "old")
