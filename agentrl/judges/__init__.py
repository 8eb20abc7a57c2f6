"""Judges: reward functions and labellers that ask a served model.

`rubric_judge` scores one rollout by weighted criteria, and `ranking_judge` the rollouts of a group
by their order; both are named in `reward.functions`. `pairwise_judge` compares two answers, and is
the `pair_labeller` of `reward.refresh`. `agentrl judge check` measures a judge against labels.
"""

from agentrl.judges.pairwise import PairwiseJudge, pairwise_judge
from agentrl.judges.ranking import RankingJudge, ranking_judge
from agentrl.judges.rubric import Criterion, RubricJudge, RubricVerdict, rubric_judge

pair_labeller = pairwise_judge
"""`pairwise_judge` by its part in `reward.refresh`: labels pairs, each shown in both orders."""

__all__ = [
    "Criterion",
    "PairwiseJudge",
    "RankingJudge",
    "RubricJudge",
    "RubricVerdict",
    "pair_labeller",
    "pairwise_judge",
    "ranking_judge",
    "rubric_judge",
]
