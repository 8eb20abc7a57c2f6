"""Families that users train, tiny and random, against their own forward; a phase of its own."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest
import transformers

from agentrl.chat.build import TEMPLATES
from agentrl.chat.parsers import NO_PARSER, PARSERS

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "families"))
from page import PAGE, cells, table_rows, vllm_architectures
from sweep import RIGHT, ROWS, Found, look_at
from trained import TRAINED

pytestmark = [
    pytest.mark.families,
    pytest.mark.filterwarnings("ignore"),  # of families that are old
]
NAMED = (
    "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "gpt_oss", "gemma2", "cohere",
    "cohere2", "llama4_text", "phimoe", "nemotron", "stablelm", "falcon", "gptj",
)  # fmt: skip
"""Families that were wrong, or refused, when the list was made."""


@cache
def of(kind: str) -> Found:
    transformers.utils.logging.set_verbosity_error()
    return look_at(kind)


@pytest.mark.parametrize("kind", TRAINED)
def test_a_family_is_trained_and_decoded_as_its_own_forward_has_it(kind: str) -> None:
    """Fails where a scale, a cap, a sink, a window, a chunk or a state of a family is left out, in
    numbers or in gradients, and where the page of the documentation has it otherwise."""
    found = of(kind)
    assert found.trainer in (RIGHT, ROWS), found
    assert not found.is_bad, found
    known = vllm_architectures()
    want, got = cells(found, known), table_rows(PAGE.read_text())[kind]
    if known is None:
        want[4] = got[4]
    assert got == want, "run benchmarks/families/page.py"


def test_the_list_is_that_of_the_page_and_has_chats_that_there_are() -> None:
    assert set(NAMED) <= set(TRAINED)
    assert len(TRAINED) >= 40
    assert list(table_rows(PAGE.read_text())) == list(TRAINED)
    for family in TRAINED.values():
        assert family.template in TEMPLATES
        assert all(p in (NO_PARSER, *PARSERS) for p in family.parser.split(", ")), family


def test_the_comparison_notices_a_family_that_is_computed_wrongly() -> None:
    """Fails if a wrong number passes: a model whose own forward is another one from now on."""
    from sweep import TOLERANCE, own_log_probs, rows_of
    from tiny_models import build

    model, row = build("cohere"), rows_of()[0]
    before = own_log_probs(model, row)
    model.logit_scale *= 1.001
    off = float((own_log_probs(model, row) - before).abs().max())
    assert off > 10 * TOLERANCE
