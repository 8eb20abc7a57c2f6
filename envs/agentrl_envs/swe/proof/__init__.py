"""Proof that a pass is earned: what the tested code gives, judged where it cannot reach.

    tests --> the same with other literals, and probes in place of comparisons
                |-- run with the gold change     values that are right
                |-- run without any change       values that the defect gives
                `-- run with the agent's change  compared with both, outside the sandbox

The process of the tests holds no expected value of a probe and says no verdict, so a runner that is
patched, a report that is forged or an object that equals everything gains nothing: what earns a
pass is the right value, for inputs that nobody has seen before. Tests without such values are left
to `sabotage`.
"""

from agentrl_envs.swe.proof.plan import Earned, ProofPlan, make_plan
from agentrl_envs.swe.proof.probes import ProbeFile, probe_file

__all__ = ["Earned", "ProbeFile", "ProofPlan", "make_plan", "probe_file"]
