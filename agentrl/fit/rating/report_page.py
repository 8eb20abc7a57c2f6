"""The report of a reward model as one HTML file: facts, the reliability diagram, all tables.

It asks for nothing and runs nothing: its own policy allows its one style sheet, by its hash. Names
of models, files and sources are text and never markup.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape

from agentrl.fit.rating.report_tables import (
    ReportTable,
    report_facts,
    report_tables,
    scale_text,
)
from agentrl.fit.rating.reward_report import RewardReport

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1.2rem; }
dt { opacity: 0.75; } dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.8rem; text-align: left; border-bottom: 1px solid #8886; }
figure { margin: 0; } svg { max-width: 100%; height: auto; border-radius: 6px; }
"""


def report_page(report: RewardReport, diagram: str) -> str:
    """The text of the whole file.

    Args:
        report: what was measured.
        diagram: of `reliability_svg`.
    """
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    facts = "".join(
        f"<dt>{_text(name)}</dt><dd>{_text(said)}</dd>\n"
        for name, said in report_facts(report).items()
    )
    tables = report_tables(report)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Reward model {_text(report.model)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>Reward model</h1>\n<dl>\n{facts}</dl>\n"
        f"<h2>Reliability</h2>\n<figure>\n{diagram}<figcaption>Points on the dashed line are as "
        "often right as the model says. Whiskers are 95 % intervals.</figcaption>\n</figure>\n"
        + "".join(map(_table, tables))
        + f"<h2>Scale</h2>\n<p>{_text(scale_text(report))}</p>\n</main>\n</body>\n</html>\n"
    )


def _table(table: ReportTable) -> str:
    note = f"<p>{_text(table.note)}</p>\n" if table.note else ""
    grid = ""
    if table.rows:
        head = "".join(f'<th scope="col">{_text(name)}</th>' for name in table.columns)
        rows = "".join(
            "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>\n"
            for row in table.rows
        )
        grid = (
            '<div class="wide" tabindex="0" role="region" '
            f'aria-label="{escape(table.title)}"><table>\n<thead><tr>{head}</tr></thead>\n'
            f"<tbody>\n{rows}</tbody>\n</table></div>\n"
        )
    return f"<h2>{_text(table.title)}</h2>\n{grid}{note}"


def _text(value: str) -> str:
    """Text of a model's or file's name: no markup, and nothing that cannot be written as UTF-8."""
    return escape(value.encode("utf-8", "backslashreplace").decode())
