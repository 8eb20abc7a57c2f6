"""The fields that rows of both kinds of tasks have in common."""

from __future__ import annotations

import platform
from typing import Any

from agentrl_envs.swe.make.library import Workshop
from agentrl_envs.swe.make.project import TEST_ENV, Project
from agentrl_envs.swe.make.verdict import Baseline, ChangeVerdict


def base_row(
    shop: Workshop, project: Project, baseline: Baseline, verdict: ChangeVerdict
) -> dict[str, Any]:
    """The fields of `SweTask` that do not depend on how the source was broken."""
    return {
        "repo": project.release.name,
        "version": project.release.version,
        "created_at": project.release.uploaded,
        "FAIL_TO_PASS": list(verdict.fail_to_pass),
        "PASS_TO_PASS": list(verdict.pass_to_pass),
        "source_paths": list(project.source_paths),
        "test_paths": list(project.test_paths),
        "python_path": [project.python_path],
        "test_command": list(project.test_command),
        "test_env": TEST_ENV,
        "test_seconds": round(baseline.seconds, 2),
        "environment": shop.environment.id,
        "requirements": list(shop.environment.requirements),
        "python": platform.python_version(),
        "license": project.license,
        "license_file": project.license_file,
    }
