// One metric as a card: its name and last value, its curve, its bounds in words, and, when asked,
// what it tells. The dashboard, the comparison of runs and the list of all metrics show these.

import { lineChart } from "../chart.js";
import { follow } from "../cursor.js";
import { h } from "../dom.js";
import { bounds, formatOf, num, percent, short } from "../format.js";
import { ema } from "../scale.js";

// spec: what `lineChart` takes, and {title, unit?, note?, what?, source?, mono?, plain?}.
export function curveCard(spec) {
  const { series } = spec;
  const value = h("b", { class: "value" });
  const unit = h("span", { class: "unit" });
  const last = spec.look?.zoom?.[1];
  const show = formatOf(spec.unit);
  const legend = series.length > 1 ? legendOf(series, last, show) : null;
  const set = (step) => {
    const shown = valueAt(series[0], step, last);
    const smooth = legend || !spec.look?.smooth || series[0].low ? null : valueAt(smoothed(spec), step, last);
    const said = legend ? "" : stand(shown, spec);
    value.textContent = legend ? "" : show(shown);
    value.className = `value ${STANDS[said] ?? ""}`;
    unit.textContent = [
      show === num && spec.unit?.replaceAll(" ", "\u00a0"),
      WORDS[said],
      smooth !== null && `smoothed ${show(smooth)}`,
      step !== null && `step ${num(step)}`]
      .filter(Boolean)
      .join(", ");
    legend?.set(step);
  };
  set(null);
  const card = h(
    "article",
    { class: `curve-card ${spec.plain ? "plain" : "card"}`, "data-item": "" },
    h(
      "header",
      {},
      h("h3", { class: spec.mono ? "mono" : null }, spec.title),
      h("span", { class: "reading-of" }, value, unit),
    ),
    spec.note && h("p", { class: "note" }, spec.note),
    lineChart(spec),
    legend?.node,
    about(spec),
  );
  follow(card, set);
  return card;
}

function smoothed({ series: [one], look }) {
  return { steps: one.steps, values: ema(one.values, look.smooth) };
}

// The value at a step; without one, the last of those that are drawn.
function valueAt(one, step, last = Infinity) {
  const at = step === null ? one.steps.findLastIndex((s) => s <= last) : one.steps.indexOf(step);
  return at < 0 ? null : (one.values[at] ?? null);
}

const STANDS = { good: "good-ink", outside: "warn-ink", red: "fail-ink" };
// A colour alone does not say it to everybody.
const WORDS = { outside: "outside healthy", red: "red flag" };

export function stand(value, { healthy, red }) {
  if (value === null || !healthy) return "";
  const outside = ([low, high]) => (low !== null && value < low) || (high !== null && value > high);
  if (outside(red)) return "red";
  if (healthy.every((limit) => limit === null)) return "";
  return outside(healthy) ? "outside" : "good";
}

function legendOf(series, last, show) {
  const values = series.map(() => h("b"));
  const node = h(
    "ul",
    { class: "names" },
    series.map((one, i) =>
      h("li", {}, h("i", { class: `swatch ${one.color}` }), `${one.name} `, values[i]),
    ),
  );
  const set = (step) =>
    values.forEach((one, i) => (one.textContent = show(valueAt(series[i], step, last))));
  return { node, set };
}

function about({ healthy, red, what, source, key, unit }) {
  const show = unit === "share" ? percent : short;
  const [low, high] = red ?? [null, null];
  const flags = [low !== null && `below ${show(low)}`, high !== null && `above ${show(high)}`];
  const said = [
    healthy && bounds(healthy) && `healthy ${bounds(healthy, show)}`,
    flags.some(Boolean) && `flag ${flags.filter(Boolean).join(" or ")}`,
  ].filter(Boolean);
  if (!what && !said.length) return null;
  return h(
    "details",
    { class: "about", "data-key": `about ${key}` },
    h("summary", { title: what }, said.join(", ") || "What it tells"),
    h("p", {}, what),
    source && h("p", { class: "note" }, `Bounds: ${source}`),
  );
}
