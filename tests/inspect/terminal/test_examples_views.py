"""The pair view of a fit in the terminal."""

from __future__ import annotations

import shutil
from pathlib import Path

from agentrl.inspect.pages.examples import example_answer, examples_answer
from agentrl.inspect.terminal.app import TerminalApp
from agentrl.inspect.terminal.examples import answer_rows, token_rows
from tests.inspect.fit_runs import reader_of
from tests.inspect.terminal.test_app import FORBIDDEN, SIZE, press, readers, until


async def test_from_a_run_to_the_tokens_of_a_pair_and_back(fit_run: Path) -> None:
    app = TerminalApp(readers(fit_run))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "e shows their examples")
        await press(pilot, "e")
        await until(pilot, "examples of held after step 4", "in the right order", "odd")
        await press(pilot, "left_square_bracket")
        await until(pilot, "after step 2")
        await press(pilot, "right_square_bracket")
        await until(pilot, "examples of held after step 4")
        await press(pilot, "enter")
        # What would colour the terminal is spelled out, and tags are text.
        await until(pilot, "chosen", "rejected", "log-ratio", "<script>", "\\e[31mred", "margin")
        await press(pilot, "t")
        await until(pilot, "policy", "ratio", "text")
        for overlay in ("policy", "reference", "log-ratio"):
            await press(pilot, "o")
            await until(pilot, f"coloured by {overlay}")
        await press(pilot, "n")
        await until(pilot, "held/p1")
        await press(pilot, "left_square_bracket")
        await until(pilot, "held/p1  after step 2")
        await press(pilot, "p")
        await until(pilot, "odd")
        await press(pilot, "escape")
        await until(pilot, "examples of held")


async def test_a_run_without_examples_says_so(fit_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(fit_run, tmp_path / "copy"))
    shutil.rmtree(run / "examples")
    app = TerminalApp(readers(run))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "no findings")
        await press(pilot, "e")
        await until(pilot, "this run has kept no examples")


def test_answers_stand_beside_each_other_with_their_own_numbers(fit_run: Path) -> None:
    """Fails if both columns show one answer, or a line is wider than the terminal."""
    reader = reader_of(fit_run)
    name = examples_answer(reader)["examples"][1]["id"]
    answer = example_answer(reader, "held", 4, name)
    lines = list(answer_rows(answer, 100, "log_ratio"))
    assert max(line.cell_len for line in lines) <= 100
    assert not set("".join(line.plain for line in lines)) & FORBIDDEN
    heads = next(line.plain for line in lines if line.plain.startswith("chosen"))
    assert heads.index("rejected") == 51
    ratios = next(line.plain for line in lines if line.plain.startswith("log-ratio"))
    for part, sums in zip((ratios[:51], ratios[51:]), answer["sums"], strict=True):
        assert float(part.split()[1]) == float(f"{sums['log_ratio']:.3g}")
    backgrounds = {
        str(span.style) for line in lines for span in line.spans if "on " in str(span.style)
    }
    assert any("rgb(0," in style for style in backgrounds), "likelier tokens are green"
    assert any("rgb(0," not in style for style in backgrounds), "less likely ones are red"
    listed = [line.plain for line in token_rows(answer, 100)]
    first = answer["answers"][0]
    rows = [line for line in listed if line[:8].strip() == str(first["ids"][0])]
    assert f"{first['log_ratio'][0]:.3f}" in rows[0][:51]
