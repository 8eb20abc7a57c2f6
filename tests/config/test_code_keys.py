"""Keys that name code: all of them stand in the documents, and a check names those of a file."""

from __future__ import annotations

import re
from pathlib import Path

from agentrl.config.fit import FitConfig
from agentrl.config.load import RUN_FILE
from agentrl.config.paths import code_keys, code_line
from agentrl.config.schema import RunConfig

DOCUMENT = Path(__file__).parents[2] / "docs" / "commands.md"


def test_every_key_that_runs_code_stands_in_the_documents() -> None:
    # Fails if a section gets a key that names code, and the list does not.
    section = DOCUMENT.read_text().partition("## Code in a run file")[2]
    listed = re.findall(r"`([a-z_.NAME]+)`[,;.]", section.partition("What `args`")[0])
    assert set(listed) == {*code_keys(RunConfig), *code_keys(FitConfig)}


def test_the_code_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}")
    (tmp_path / "run.yaml").write_text(
        """
        env: {target: my_env.py:Env, tools: [my.py:one, {target: my.py:Two, args: {a: 1}}]}
        dataset: {source: rows.jsonl}
        eval: {datasets: {dev: {source: "package.module:rows"}, hub: {source: "hf:a/b:c"}}}
        reward: {functions: {judge: {target: "judge.py:score"}}}
        chat: {tool_parser: hermes}
        """
    )
    line = code_line(RUN_FILE.load(tmp_path / "run.yaml", []))
    assert line.startswith(f"imports and runs env.target {tmp_path}/my_env.py:Env, env.tools ")
    for text in ("/my.py:one", "/my.py:Two", "package.module:rows", "/judge.py:score"):
        assert text in line
    for text in ("hf:", "hermes", "rows.jsonl"):
        assert text not in line
