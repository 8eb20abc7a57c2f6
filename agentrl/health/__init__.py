"""Detectors over the history of a run, and rules that may end it."""

from agentrl.health.causes import RankedCause, causes, merged_levers
from agentrl.health.commands import next_command
from agentrl.health.dashboard import DASHBOARD, Band
from agentrl.health.detector import Detector, detector
from agentrl.health.diagnose import DETECTORS, THRESHOLDS, diagnose, limits, own_thresholds
from agentrl.health.fit_dashboard import FIT_DASHBOARD
from agentrl.health.history import read_config, read_history, series_of
from agentrl.health.records import (
    Evidence,
    History,
    Lever,
    RolloutFacts,
    Series,
    Verdict,
)
from agentrl.health.report import ranked_records
from agentrl.health.rollouts import facts_of, rollouts_of_step, sampled_steps
from agentrl.health.rules import silent_rules
from agentrl.health.thresholds import Threshold, bound
from agentrl.types.finding import Status

__all__ = [
    "DASHBOARD",
    "DETECTORS",
    "FIT_DASHBOARD",
    "THRESHOLDS",
    "Band",
    "Detector",
    "Evidence",
    "History",
    "Lever",
    "RankedCause",
    "RolloutFacts",
    "Series",
    "Status",
    "Threshold",
    "Verdict",
    "bound",
    "causes",
    "detector",
    "diagnose",
    "facts_of",
    "limits",
    "merged_levers",
    "next_command",
    "own_thresholds",
    "ranked_records",
    "read_config",
    "read_history",
    "rollouts_of_step",
    "sampled_steps",
    "series_of",
    "silent_rules",
]
