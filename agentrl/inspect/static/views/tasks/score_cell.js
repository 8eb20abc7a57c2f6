// The score of a task in some steps: a number with a bar, or a column of a small chart; each leads
// to the newest group behind it.

import { h } from "../../dom.js";
import { column, num, plural } from "../../format.js";
import { href } from "../../router.js";
import { meter } from "../parts.js";

export function stepsName([first, last]) {
  return first === last ? `step ${num(first)}` : `steps ${num(first)} to ${num(last)}`;
}

export function groupOf(run, kind, cell) {
  return href("group", { run, kind, step: cell.step, group: cell.group_id });
}

// `range`: the ends of the bar.
export function scoreCell(cell, { run, kind, range, steps, name }) {
  if (!cell)
    return h("span", { class: "note", title: `not tried in ${stepsName(steps)}` }, num(null));
  const more = cell.n > 1 ? `, std ${num(cell.std)}` : "";
  return h(
    "a",
    {
      class: "score-cell",
      href: groupOf(run, kind, cell),
      "data-key": `${name} ${cell.group_id}`,
      title: `${plural(cell.n, "rollout")} of ${stepsName(steps)}${more}; opens its group of step ${cell.step}`,
    },
    meter(cell.mean, range),
    column(cell.mean),
  );
}

// One column for each range of steps, as high as the score; a gap where the task was not tried. All
// of them are one link, to the newest group or to the one under the pointer: a column alone would be
// too narrow to hit.
export function scoreColumns(cells, ranges, { run, kind, range }) {
  const newest = cells.findLast(Boolean);
  if (!newest) return null;
  const said = (cell, i) => `${stepsName(ranges[i])}: ${num(cell.mean)}, ${plural(cell.n, "rollout")}`;
  return h(
    "a",
    {
      class: "score-columns",
      href: groupOf(run, kind, newest),
      "aria-label": `opens the newest group; ${cells.map((cell, i) => cell && said(cell, i)).filter(Boolean).join("; ")}`,
      onclick: (event) => {
        const cell = cells[[...event.currentTarget.children].indexOf(event.target.closest(".at-step"))];
        if (!cell || event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        location.hash = groupOf(run, kind, cell);
      },
    },
    cells.map((cell, i) =>
      cell
        ? h("span", { class: "at-step", title: said(cell, i) }, h("i", { vars: { "--share": share(cell.mean, range) } }))
        : h("span", { class: "gap" }),
    ),
  );
}

function share(mean, [low, high]) {
  return ((mean ?? 0) - low) / (high - low);
}
