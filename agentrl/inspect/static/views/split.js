// Two texts side by side: equal lines level with each other, what differs marked in both.

import { diff } from "../diff.js";
import { h } from "../dom.js";

// Longer texts are shown plain: a difference of that size is not read anyway.
export const MOST_CHARS = 60_000;
// Equal lines that stay around a difference; longer runs of them are folded.
const AROUND = 3;
// Lines that share less are easier to read whole than with marks.
const ALIKE = 0.4;

export function splitText(left, right) {
  const rows = lineRows(left, right);
  const parts = [];
  for (let i = 0; i < rows.length; ) {
    let end = i;
    while (end < rows.length && rows[end].same === rows[i].same) end++;
    const run = rows.slice(i, end);
    parts.push(run[0].same ? equalRun(run, i === 0, end === rows.length) : run.map(rowNode));
    i = end;
  }
  return h("div", { class: "split", role: "group", "aria-label": "A and B side by side" }, parts);
}

// [{same, left, right}], a missing line being null.
export function lineRows(left, right) {
  const lines = (text) => text.match(/[^\n]*\n|[^\n]+/g) ?? [];
  const rows = [];
  let gone = [];
  let fresh = [];
  const flush = () => {
    for (let i = 0; i < Math.max(gone.length, fresh.length); i++)
      rows.push({ same: false, left: gone[i] ?? null, right: fresh[i] ?? null });
    [gone, fresh] = [[], []];
  };
  for (const [kind, text] of diff(left, right, lines)) {
    if (kind === "gone") gone.push(...lines(text));
    else if (kind === "new") fresh.push(...lines(text));
    else {
      flush();
      for (const line of lines(text)) rows.push({ same: true, left: line, right: line });
    }
  }
  flush();
  return rows;
}

function equalRun(run, first, last) {
  const before = first ? 0 : AROUND;
  const after = last ? 0 : AROUND;
  const hidden = run.slice(before, run.length - after);
  if (hidden.length < 2 * AROUND) return run.map(rowNode);
  return [
    run.slice(0, before).map(rowNode),
    h(
      "details",
      {},
      h("summary", { class: "note" }, `${hidden.length} equal lines`),
      hidden.map(rowNode),
    ),
    run.slice(run.length - after).map(rowNode),
  ];
}

function rowNode({ same, left, right }) {
  let cells = [left, right].map((line) => line?.replace(/\n$/, ""));
  if (!same && left !== null && right !== null) cells = marked(...cells);
  const side = (content, line, name) =>
    h(
      "pre",
      { class: `text ${line === null ? "none" : same ? "" : name}` },
      line === null ? "" : content,
    );
  return h(
    "div",
    { class: `split-row${same ? "" : " differs"}` },
    side(cells[0], left, "gone"),
    side(cells[1], right, "new"),
  );
}

// The words that only one of two lines has.
function marked(left, right) {
  const parts = diff(left, right);
  const shared = parts
    .filter(([kind]) => kind === "same")
    .reduce((sum, [, text]) => sum + text.length, 0);
  if (shared < ALIKE * Math.max(left.length, right.length)) return [left, right];
  const of = (own, tag) =>
    parts
      .filter(([kind]) => kind === "same" || kind === own)
      .map(([kind, text]) => (kind === "same" ? text : h(tag, {}, text)));
  return [of("gone", "del"), of("new", "ins")];
}
