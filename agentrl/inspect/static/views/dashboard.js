// The minimum dashboard: a curve for each band the server sends, drawn on one common axis.

import { h } from "../dom.js";
import { curveCard } from "./curve_card.js";

// `eval/*/score` stands for every name with anything in place of the star.
export function matching(metrics, pattern) {
  if (!pattern.includes("*")) return metrics[pattern] ? [pattern] : [];
  const [before, after] = pattern.split("*");
  return Object.keys(metrics).filter(
    (name) =>
      name.startsWith(before) &&
      name.endsWith(after) &&
      name.length >= before.length + after.length,
  );
}

export function metricNames(run) {
  return new Set(run.dashboard.flatMap((band) => matching(run.metrics, band.metric)));
}

export function dashboard(run, steps, open) {
  const there = run.dashboard.filter((band) => matching(run.metrics, band.metric).length);
  const missing = run.dashboard.filter((band) => !there.includes(band));
  return h(
    "section",
    { "aria-labelledby": "dashboard-title" },
    h("h2", { id: "dashboard-title", class: "section" }, "Dashboard"),
    key(run, there),
    h(
      "div",
      { class: "grid-charts" },
      there.map((band) => card(run, band, steps, open)),
    ),
    missing.length > 0 &&
      h(
        "p",
        { class: "note below" },
        `Not logged by this run: ${missing.map((band) => band.label).join(", ")}.`,
      ),
  );
}

// What the marks on the curves mean; only those that occur.
function key(run, bands) {
  const bounded = (name) => bands.some((band) => band[name].some((limit) => limit !== null));
  const found = run.verdicts.some((one) => one.status === "warn" || one.status === "fail");
  const marks = [
    bounded("healthy") && ["healthy", "healthy"],
    bounded("red") && ["red", "red flag"],
    found && ["found", "steps of a finding"],
    run.events.length > 0 && ["event", "an event"],
    Object.keys(run.evals).length > 0 && ["interval", "95 % interval"],
  ].filter(Boolean);
  return h(
    "ul",
    { class: "names marks" },
    marks.map(([cls, text]) => h("li", {}, h("i", { class: `mark-of ${cls}` }), text)),
    h("li", {}, run.examples?.length ? "A click on a curve opens the examples of that step." : "A click on a curve opens the rollouts of that step."),
  );
}

function card(run, band, steps, open) {
  const names = matching(run.metrics, band.metric);
  const [before, after = ""] = band.metric.split("*");
  const short = (name) =>
    band.metric.includes("*") ? name.slice(before.length, name.length - after.length) : name;
  return curveCard({
    title: band.label,
    unit: band.unit,
    what: band.what,
    source: band.source,
    series: names.map((name, i) => ({
      name: short(name),
      color: `c${i % 8}`,
      ...run.metrics[name],
      ...interval(run, name),
    })),
    steps,
    healthy: band.healthy,
    red: band.red,
    open: opener(open, names[0]),
    key: `chart ${band.metric}`,
    label: `${band.label} by step`,
    marks: run.events.map((event) => ({
      step: event.step,
      text: `step ${event.step}: ${event.text}`,
      level: event.what,
    })),
    spans: spansOf(run, names),
  });
}

// A click on the curve of an evaluation opens the rollouts of that evaluation.
export function opener(open, metric) {
  const kind = metric?.match(/^(eval\/.+)\/[^/]+$/)?.[1];
  return kind ? (step) => open(step, kind) : open;
}

function interval(run, name) {
  const found = name.match(/^eval\/(.+)\/score$/);
  const own = found && run.evals[found[1]];
  return own && own.steps.length === run.metrics[name].steps.length
    ? { low: own.low, high: own.high }
    : {};
}

function spansOf(run, names) {
  return run.verdicts
    .filter((verdict) => verdict.status === "warn" || verdict.status === "fail")
    .flatMap((verdict) =>
      verdict.evidence
        .filter((one) => names.includes(one.metric))
        .map((one) => ({ first: one.first_step, last: one.last_step, level: verdict.status })),
    );
}
