"""Files that the report of a reward model leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.errors import DataError
from agentrl.fit.rating.reliability_plot import reliability_svg
from agentrl.fit.rating.report_page import report_page
from agentrl.fit.rating.report_text import report_markdown
from agentrl.fit.rating.reward_report import RewardReport
from agentrl.machine.files import write_whole
from agentrl.reward.scale import save_scales

if TYPE_CHECKING:
    from agentrl.fit.rating.reward_model import OpenRewardModel


def write_report(
    report: RewardReport, model: OpenRewardModel, folder: Path, *, store: bool
) -> list[Path]:
    """Write the report as JSON, Markdown, diagram and page, and the scale beside the checkpoint.

    The files are `report.json`, `report.md`, `reliability.svg` and `report.html`.

    Args:
        report: what was measured.
        model: its folder gets the scale.
        folder: made if needed.
        store: whether the scale is stored.

    Returns:
        The files that were written.

    Raises:
        DataError: the scale is to be stored, and there is none; the reports are written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    overall = report.calibration.overall
    diagram = reliability_svg(overall.before, None if report.temperature_problem else overall.after)
    files = {
        folder / "report.json": json.dumps(report.to_json(), indent=1) + "\n",
        folder / "report.md": report_markdown(report),
        folder / "reliability.svg": diagram,
        folder / "report.html": report_page(report, diagram),
    }
    for path, text in files.items():
        write_whole(path, text.encode("utf-8", "backslashreplace"))
    written = list(files)
    if store:
        assert model.folder is not None
        if report.head_scales:
            written.append(save_scales(report.head_scales, model.folder))
        elif report.scale is not None:
            written.append(report.scale.save(model.folder))
        else:
            raise DataError(f"--store: there is no scale to store: {report.scale_problem}")
    return written
