"""The command `agentrl prove` on losses of one's own, right and wrong."""

from __future__ import annotations

import textwrap

import pytest

from agentrl.cli import main


def run(tmp_path, loss, capsys):
    (tmp_path / "mine.py").write_text(textwrap.dedent(loss))
    (tmp_path / "run.yaml").write_text(
        textwrap.dedent(
            """
            run: {name: proof}
            env: {target: "agentrl_envs.code:CodeTask"}
            dataset: {source: "agentrl_envs.code:make_tasks"}
            algorithm: {policy_loss: "mine.py:loss"}
            """
        )
    )
    with pytest.raises(SystemExit) as left:
        main(["prove", str(tmp_path / "run.yaml"), "algorithm.loss_agg_mode=token-mean"])
    return left.value.code, capsys.readouterr().out


GOOD = """
    from agentrl.train.losses import TokenLosses

    def loss(inputs):
        return TokenLosses(loss_R=-inputs.advantages_R * inputs.log_probs_R)
"""


LOCAL = """
    from agentrl.train.losses import TokenLosses

    def loss(inputs):
        kept = inputs.trained(inputs.advantages_R * inputs.log_probs_R)
        return TokenLosses(total=-kept.mean())
"""


def test_the_command_says_pass_or_where_it_breaks(tmp_path, capsys):
    code, out = run(tmp_path, GOOD, capsys)
    assert (code, "FAIL" in out) == (0, False)
    assert "pass: one gradient, however the work is divided" in out


def test_the_command_fails_with_status_1(tmp_path, capsys):
    code, out = run(tmp_path, LOCAL, capsys)
    assert code == 1
    assert "2 ranks" in out
    assert "instead of" in out
