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

// One column for each range of steps, as high as the score; a gap where the task was not tried.
export function scoreColumns(cells, ranges, { run, kind, range }) {
  return h(
    "span",
    { class: "score-columns" },
    cells.map((cell, i) => {
      if (!cell) return h("i", { class: "gap", "aria-hidden": "true" });
      const said = `${stepsName(ranges[i])}: ${num(cell.mean)}, ${plural(cell.n, "rollout")}`;
      return h(
        "a",
        { href: groupOf(run, kind, cell), title: said, "aria-label": said },
        h("i", { vars: { "--share": share(cell.mean, range) } }),
      );
    }),
  );
}

function share(mean, [low, high]) {
  return ((mean ?? 0) - low) / (high - low);
}
