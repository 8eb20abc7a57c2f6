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
export function proofs(lines) {
  if (!lines?.length) return null;
  return h(
    "details",
    { class: "card", "data-key": "proofs" },
    h("summary", {}, "Models beside their own forward passes"),
    lines.map((line) => h("p", { class: "notes" }, line)),
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
