// All other metrics, drawn when asked for, and the config the run was started with.

import { h } from "../dom.js";
import { plural } from "../format.js";
import { constantOf } from "../scale.js";
import { constantsNote } from "./charts/constants.js";
import { curveCard } from "./curve_card.js";
import { opener } from "./dashboard.js";

// More curves at once than anyone reads would only make the page slow.
const MOST = 24;
// Kept over redraws of a running run.
let asked = "";
let keyAsked = "";

// Gives {node, redraw(look)}, or null where there are no other metrics.
export function everyMetric(run, steps, open, drawn) {
  let look;
  const names = Object.keys(run.metrics)
    .filter((name) => !drawn.has(name))
    .sort();
  const flat = new Set(names.filter((name) => constantOf(run.metrics[name].values) !== null));
  if (!names.length) return null;
  const grid = h("div", { class: "grid-charts small" });
  const constants = h("div");
  const count = h("span", { class: "note", role: "status" });
  const box = h("input", {
    type: "search",
    value: asked,
    placeholder: "Part of a name, as in rollout/ or grad",
    "aria-label": "Metrics by name",
    "data-key": "metrics-box",
  });
  const fill = () => {
    asked = box.value;
    const found = names.filter((name) => name.toLowerCase().includes(asked.trim().toLowerCase()));
    const lively = found.filter((name) => !flat.has(name));
    count.textContent = `${found.length} of ${names.length}${lively.length > MOST ? `, the first ${MOST} that change are drawn` : ""}`;
    grid.replaceChildren(...lively.slice(0, MOST).map((name) => card(run, name, steps, open, look)));
    const note = constantsNote(
      found.filter((name) => flat.has(name)).map((name) => ({ name, ...run.metrics[name] })),
    );
    constants.replaceChildren(...(note ? [note] : []));
  };
  box.addEventListener("input", fill);
  const all = h(
    "details",
    { class: "card", "data-key": "metrics" },
    h("summary", {}, h("h2", {}, "All other metrics")),
    h("p", { class: "row" }, box, count),
    grid,
    constants,
  );
  const started = () => grid.childElementCount + constants.childElementCount > 0;
  all.addEventListener("toggle", () => all.open && !started() && fill());
  const redraw = (now) => {
    look = now;
    if (started()) fill();
  };
  return { node: all, redraw };
}

function card(run, name, steps, open, look) {
  const { meaning, unit } = run.meanings?.[name] ?? {};
  return curveCard({
    title: name,
    mono: true,
    plain: true,
    unit: ["ratio", "count"].includes(unit) ? "" : unit,
    what: meaning && `${meaning[0].toUpperCase()}${meaning.slice(1)}.`,
    series: [{ name, ...run.metrics[name] }],
    steps,
    look,
    height: 92,
    open: opener(open, name),
    label: `${name} by step`,
    key: `metric ${name}`,
  });
}

/** How each model of the run compared with its own forward pass when it started. */
// Differences are beside what rounding explains: on average, and of one token.
export function proofs(rows) {
  if (!rows?.length) return null;
  const first = rows.map((row, i) => row.name !== rows[i - 1]?.name);
  const beside = (found, allowed) =>
    h("td", { class: "n" }, found, " ", h("span", { class: "note" }, `of ${allowed}`));
  const cells = (row) =>
    row.error
      ? [h("td", { colspan: 5 }, row.error)]
      : [
          h("td", {}, row.model),
          h("td", {}, row.form),
          h("td", {}, row.by ? `${row.dtype}, ${row.by}` : row.dtype),
          beside(row.mean, row.mean_allowed),
          row.worst_allowed ? beside(row.worst, row.worst_allowed) : h("td", { class: "n" }, row.worst),
        ];
  return h(
    "details",
    { class: "card", "data-key": "proofs" },
    h("summary", {}, h("h2", {}, "Models beside their own forward passes")),
    h(
      "p",
      { class: "note" },
      "Differences in nats of a token, or in parts of the size of a layer or a critic's state, of " +
        "what rounding explains. A model that differs by more is not used.",
    ),
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Models" },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["Name", "Model", "Computed", "In"].map((text) => h("th", {}, text)),
            ["On average", "At most"].map((text) => h("th", { class: "n" }, text)),
          ),
        ),
        h(
          "tbody",
          {},
          rows.map((row, i) =>
            h("tr", {}, h("td", { class: "mono" }, first[i] ? row.name : ""), cells(row)),
          ),
        ),
      ),
    ),
  );
}

export function configuration(config) {
  const keys = Object.keys(config ?? {});
  if (!keys.length) return null;
  const rows = keys.map((key) =>
    h("tr", {}, h("td", { class: "mono" }, key), h("td", { class: "mono" }, shownValue(config[key]))),
  );
  const box = h("input", {
    type: "search",
    placeholder: "Part of a key",
    "aria-label": "Config by key",
    "data-key": "config-box",
    value: keyAsked,
    oninput: () => {
      keyAsked = box.value;
      narrow();
    },
  });
  const narrow = () =>
    rows.forEach((row, i) => (row.hidden = !keys[i].includes(keyAsked.trim().toLowerCase())));
  narrow();
  return h(
    "details",
    { class: "card", "data-key": "config" },
    h(
      "summary",
      {},
      h("h2", {}, "Config ", h("span", { class: "note" }, plural(keys.length, "key"))),
    ),
    h("p", { class: "row" }, box),
    h("table", { class: "config", "aria-label": "Config" }, h("tbody", {}, rows)),
  );
}

export function shownValue(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}
