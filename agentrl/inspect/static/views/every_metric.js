// All other metrics, drawn when asked for, and the config the run was started with.

import { h } from "../dom.js";
import { plural } from "../format.js";
import { curveCard } from "./curve_card.js";
import { opener } from "./dashboard.js";

// More curves at once than anyone reads would only make the page slow.
const MOST = 24;
// Kept over redraws of a running run.
let asked = "";
let keyAsked = "";

export function everyMetric(run, steps, open, drawn) {
  const names = Object.keys(run.metrics)
    .filter((name) => !drawn.has(name))
    .sort();
  if (!names.length) return null;
  const grid = h("div", { class: "grid-charts small" });
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
    count.textContent = `${found.length} of ${names.length}${found.length > MOST ? `, the first ${MOST} are drawn` : ""}`;
    grid.replaceChildren(...found.slice(0, MOST).map((name) => card(run, name, steps, open)));
  };
  box.addEventListener("input", fill);
  const all = h(
    "details",
    { class: "card", "data-key": "metrics" },
    h("summary", {}, h("h2", {}, "All other metrics")),
    h("p", { class: "row" }, box, count),
    grid,
  );
  all.addEventListener("toggle", () => all.open && !grid.childElementCount && fill());
  return all;
}

function card(run, name, steps, open) {
  const { meaning, unit } = run.meanings?.[name] ?? {};
  return curveCard({
    title: name,
    mono: true,
    plain: true,
    unit: ["ratio", "count"].includes(unit) ? "" : unit,
    what: meaning && `${meaning[0].toUpperCase()}${meaning.slice(1)}.`,
    series: [{ name, ...run.metrics[name] }],
    steps,
    height: 92,
    open: opener(open, name),
    label: `${name} by step`,
    key: `metric ${name}`,
  });
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
