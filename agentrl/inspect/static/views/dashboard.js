// The minimum dashboard: a curve for each band the server sends, drawn on one common axis.

import { h } from "../dom.js";
import { num } from "../format.js";
import { constantOf } from "../scale.js";
import { agentCurves, endingsCard } from "./charts/agent.js";
import { constantsNote } from "./charts/constants.js";
import { csvOf, saveText } from "./charts/csv.js";
import { axesOf, settingsOf, toParams } from "./charts/settings.js";
import { toolbar } from "./charts/toolbar.js";
import { curveCard, stand } from "./curve_card.js";

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

// Draws all curves anew whenever their settings change: `moved` is given what the address says of
// them, and `looked` how curves are drawn now.
export function dashboard(run, steps, open, params, { moved, looked }) {
  const there = run.dashboard.filter((band) => matching(run.metrics, band.metric).length);
  const missing = run.dashboard.filter((band) => !there.includes(band));
  const [flat, lively] = split(there, (band) => isFlat(run, band));
  const axes = axesOf(run);
  let settings = settingsOf(params, steps);
  if (!axes[settings.axis]) settings = { ...settings, axis: "step" };
  const bar = h("div");
  const grid = h("div", { class: "grid-charts" });
  const agent = h("div", { class: "grid-charts" });
  const [curves, still] = split(agentCurves(run), (one) => !one.series.every(isConstant));
  const ends = endingsCard(run, open) !== null && (curves.length > 0 || still.length > 0);
  const change = (part) => {
    settings = { ...settings, ...part };
    moved(toParams(settings));
    // The slider that is being moved stays; only a zoom changes what the others say.
    fill(!("smooth" in part));
  };
  const look = () => ({ ...settings, axis: axes[settings.axis], onZoom: (zoom) => change({ zoom }) });
  const save = () =>
    saveText(`${run.name}.csv`, csvOf(drawnSeries(run, lively, curves), settings, axes));
  const fill = (all) => {
    if (all) bar.replaceChildren(toolbar({ settings, axes, steps, change, save }));
    looked(look());
    grid.replaceChildren(...lively.map((band) => card(run, band, steps, open, look())));
    agent.replaceChildren(
      ...curves.map((one) =>
        curveCard({ ...one, steps, open, look: look(), label: `${one.title} by step`, key: `agent ${one.title}` }),
      ),
      ...[ends && endingsCard(run, open, settings.zoom)].filter(Boolean),
    );
  };
  fill(true);
  const note = constantsNote([
    ...flat.flatMap((band) =>
      matching(run.metrics, band.metric).map((name) => ({ name: band.label, unit: band.unit, ...run.metrics[name] })),
    ),
    ...still.flatMap((one) => one.series.map((part) => ({ ...part, name: nameOf(one, part), unit: one.unit }))),
  ]);
  return h(
    "section",
    { "aria-labelledby": "dashboard-title" },
    h("h2", { id: "dashboard-title", class: "section" }, "Dashboard"),
    key(run, there),
    bar,
    grid,
    (curves.length > 0 || ends) && [h("h3", { class: "section agent" }, "Turns, tools and endings"), agent],
    note,
    missing.length > 0 &&
      h(
        "p",
        { class: "note below" },
        `Not logged by this run: ${missing.map((band) => band.label).join(", ")}.`,
      ),
  );
}

// A curve that never moves and is where it should be. Reward and scores are always drawn: that
// they do not move is what one wants to see.
function isFlat(run, band) {
  if (band.metric === "reward" || band.metric.startsWith("eval/")) return false;
  return matching(run.metrics, band.metric).every((name) => {
    const value = constantOf(run.metrics[name].values);
    return value !== null && !["red", "outside"].includes(stand(value, band));
  });
}

function isConstant(curve) {
  return constantOf(curve.values) !== null;
}

function split(list, test) {
  return [list.filter(test), list.filter((one) => !test(one))];
}

// A card of one curve is named by its title alone.
function nameOf(card, one) {
  return card.series.length > 1 ? `${card.title}: ${one.name}` : card.title;
}

function drawnSeries(run, bands, curves) {
  const names = bands.flatMap((band) => matching(run.metrics, band.metric));
  const series = names.map((name) => ({ name, ...run.metrics[name] }));
  const more = curves.flatMap((card) =>
    card.series.map((one) => ({ ...one, name: one.metric ?? nameOf(card, one) })),
  );
  return [...series, ...more.filter((one) => !names.includes(one.name))];
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
    ["zero", "axis does not start at 0"],
  ].filter(Boolean);
  return h(
    "ul",
    { class: "names marks" },
    marks.map(([cls, text]) => h("li", {}, h("i", { class: `mark-of ${cls}` }), text)),
    h("li", {}, run.examples?.length ? "A click on a curve opens the examples of that step." : "A click on a curve opens the rollouts of that step."),
  );
}

function card(run, band, steps, open, look) {
  const names = matching(run.metrics, band.metric);
  const [before, after = ""] = band.metric.split("*");
  const short = (name) =>
    band.metric.includes("*") ? name.slice(before.length, name.length - after.length) : name;
  return curveCard({
    title: band.label,
    unit: band.unit,
    note: band.metric === "reward" ? rewardNote(run) : "",
    what: band.what,
    source: band.source,
    series: names.map((name, i) => ({
      name: short(name),
      color: `c${i % 8}`,
      ...run.metrics[name],
      ...interval(run, name),
    })),
    steps,
    look,
    healthy: band.healthy,
    red: band.red,
    zero: band.metric === "reward" || /^eval\/.+\/score$/.test(band.metric),
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

// One step has few tasks: the last value alone would be taken for where the run stands.
function rewardNote({ metrics, reward_moved: moved }) {
  if (!moved?.change || !metrics.reward) return "";
  const [from, to] = moved.end_steps;
  const { steps, values } = metrics.reward;
  if (from === to) return "";
  return `Reward ${num(values.at(-1))} in step ${num(steps.at(-1))}, ${num(moved.change.end)} over steps ${num(from)} to ${num(to)}; each step has other tasks.`;
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
