"""A campaign of attacks on a whole environment, on one with a hole, and on a run file."""

from __future__ import annotations

from agentrl.preflight.attack.attack import AttackClass
from agentrl.preflight.attack.campaign import run_attacks
from agentrl.preflight.attack.library import (
    AttackVerdict,
)
from tests.preflight.attack.campaigns import ENVS, plan, run, through


def test_an_environment_without_a_hole_holds() -> None:
    results = run_attacks(plan("Whole", AttackClass.FORGE, AttackClass.SPECIAL_CASE))
    assert {result.aim for result in results} == {AttackClass.FORGE, AttackClass.SPECIAL_CASE}
    assert through(results) == set()
    assert all(result.count(AttackVerdict.HELD) == len(result.outcomes) for result in results)


def test_one_that_looks_for_the_label_anywhere_pays_for_a_list() -> None:
    found = through(run_attacks(plan("Searches", AttackClass.SPECIAL_CASE, tasks=2)))
    assert found == {"lists the small numbers", "lists the small numbers as answers",
                     "lists it all in one answer"}  # fmt: skip


def test_a_run_file_is_attacked_as_it_would_be_run(tmp_path, capsys) -> None:
    (tmp_path / "run.yaml").write_text(
        f"env: {{target: '{ENVS}:Whole'}}\ndataset: {{source: '{ENVS}:make_tasks'}}\n"
    )
    words = ("env", "attack", str(tmp_path / "run.yaml"), "--class", "forge", "--tasks", "1")
    assert run(*words, "--sandbox", "none") == 0
    assert "All attacks were held" in capsys.readouterr().out
