"""The small vision-language model that learns on the grid world of pictures."""

from __future__ import annotations

from pathlib import Path

from agentrl_envs.screens import ACTIONS, ScreenTask, make_tasks
from transformers import AutoTokenizer

from agentrl.chat import build_chat
from agentrl.config.load import load_config
from agentrl.config.schema import ChatSection
from agentrl.data import load_tasks
from agentrl.images import ImageFolder
from agentrl.models.vision.reader import load_reader
from benchmarks.learning.vision_model import build

CONFIGS = Path(__file__).parents[2] / "configs"


async def test_a_cell_is_one_feature_and_a_turn_is_one_token(tmp_path: Path) -> None:
    count = build(tmp_path / "model", width=64, layers=1, tower_width=32, seed=0)
    assert 10_000 < count < 1_000_000
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    reader = load_reader(str(tmp_path / "model"), tokenizer)
    assert reader is not None
    reader.folder = ImageFolder(tmp_path / "images")
    # The proof of the chat format runs here, with images in each turn.
    build_chat(tokenizer, ChatSection(), images=reader)
    assert all(len(tokenizer.encode(word)) == 1 for word in ACTIONS)
    for level, side in ((1, 3), (2, 4)):
        seen = await ScreenTask().reset(make_tasks(n=1, levels=[level])[0])
        (shown,) = seen.content[0].images
        assert reader.expand(shown).grid == (1, side, side)


def test_the_config_that_it_learns_by_loads() -> None:
    config = load_config(CONFIGS / "screens.yaml")
    assert len(load_tasks(config.dataset, base=CONFIGS)) == 3000
    assert ScreenTask(**config.env.args)
