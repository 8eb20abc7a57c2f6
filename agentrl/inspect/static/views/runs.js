// All runs the server was given; the chosen ones side by side on the same axes.

import { get } from "../api.js";
import { empty, h } from "../dom.js";
import { lastPart, num, plural, when } from "../format.js";
import { go, href } from "../router.js";
import { curveCard } from "./curve_card.js";
import { matching } from "./dashboard.js";
import { shownValue } from "./every_metric.js";
import { early, notes, scoreText, statePill } from "./parts.js";

const MOST = 8;
const separator = "|";
// What a narrow screen leaves out; state and findings stand below the name there.
const WIDE = new Set(["state", "findings", "steps", "model", "started"]);

async function load(params, signal) {
  const runs = await get("runs", {}, signal);
  const asked = params.pick === undefined ? [] : params.pick.split(separator).filter(Boolean);
  const picked = asked.filter((id) => runs.some((one) => one.id === id)).slice(0, MOST);
  const full = await Promise.all(picked.map((id) => get("run", { run: id }, signal)));
  return { runs, full };
}

function draw({ runs, full }) {
  const picked = new Set(full.map((one) => one.id));
  return {
    title: "Runs",
    live: true,
    crumbs: [["runs", null]],
    node: h(
      "div",
      { class: "page" },
      h(
        "header",
        { class: "head" },
        h(
          "div",
          {},
          h("h1", {}, "Runs"),
          h(
            "p",
            { class: "sub" },
            runs.length > 1 && h("span", {}, "Tick several to see their curves on the same axes."),
          ),
        ),
      ),
      runs.length
        ? h("div", { class: "card scroll" }, table(runs, picked))
        : empty(
            "No run here",
            "The folders given to `agentrl inspect` hold no run yet. A run is a folder with run.json, config.yaml and metrics.jsonl.",
          ),
      full.length > 0 && side(full),
    ),
  };
}

function table(runs, picked) {
  const choose = (id, on) => {
    if (on) picked.add(id);
    else picked.delete(id);
    go("runs", { pick: [...picked].join(separator) });
  };
  return h(
    "table",
    { class: "runs" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ["", "run", "state", "findings", "score", "steps", "model", "started"].map(
          (name) => h("th", { class: `${name === "steps" ? "n" : ""}${WIDE.has(name) ? " wide" : ""}` }, name),
        ),
      ),
    ),
    h(
      "tbody",
      {},
      runs.map((one) =>
        h(
          "tr",
          { "data-item": "" },
          h(
            "td",
            {},
            h(
              "label",
              { class: "tick" },
              h("input", {
                type: "checkbox",
                checked: picked.has(one.id),
                "aria-label": `Compare ${one.name}`,
                "data-key": `pick ${one.id}`,
                onchange: (event) => choose(one.id, event.target.checked),
              }),
            ),
          ),
          h(
            "td",
            {},
            h("a", { class: "strong", href: href("run", { run: one.id }) }, one.name),
            h("div", { class: "pills narrow" }, statePill(one.state, early(one)), verdicts(one)),
            h("div", { class: "note mono" }, one.path),
            notes(one.notes),
          ),
          h("td", { class: "wide" }, statePill(one.state, early(one))),
          h("td", { class: "wide" }, verdicts(one)),
          h("td", {}, scoreText(one) ?? h("span", { class: "note" }, num(null))),
          h(
            "td",
            { class: "n wide" },
            num(one.steps),
            one.planned_steps > one.steps &&
              h("span", { class: "note" }, ` of ${num(one.planned_steps)}`),
          ),
          h("td", { class: "wide", title: one.model }, lastPart(one.model ?? "")),
          h("td", { class: "note wide" }, when(one.started)),
        ),
      ),
    ),
  );
}

function verdicts({ verdicts: counts, steps }) {
  if (!steps) return h("span", { class: "note" }, "no step yet");
  if (!counts) return h("span", { class: "note" }, "open to check");
  const { fail = 0, warn = 0 } = counts;
  if (!fail && !warn) return h("span", { class: "pill good" }, "fine");
  return h(
    "span",
    { class: "pills" },
    fail > 0 && h("span", { class: "pill fail" }, `${fail} fail`),
    warn > 0 && h("span", { class: "pill warn" }, `${warn} warn`),
  );
}

function side(full) {
  const color = (i) => `c${i % 8}`;
  const last = Math.max(
    1,
    ...full.flatMap((run) => Object.values(run.metrics).map((one) => one.steps.at(-1) ?? 0)),
  );
  // Evaluations have names of their own in each run: every band that any run has, by its name.
  const named = full.flatMap((run) => run.dashboard).filter((band) => !band.metric.includes("*"));
  const bands = new Map(named.map((band) => [band.metric, band]));
  const card = (band) => {
    const series = full.flatMap((run, i) =>
      matching(run.metrics, band.metric)
        .slice(0, 1)
        .map((name) => ({ name: run.name, color: color(i), ...run.metrics[name] })),
    );
    if (!series.length) return null;
    return curveCard({
      title: band.label,
      unit: band.unit,
      what: band.what,
      source: band.source,
      series,
      steps: [0, last],
      healthy: band.healthy,
      red: band.red,
      label: `${band.label} of ${plural(full.length, "run")} by step`,
      key: `chart ${band.metric}`,
      open:
        full.length === 1 ? (step) => go("step", { run: full[0].id, kind: "train", step }) : null,
    });
  };
  const silent = full.filter((run) => !Object.keys(run.metrics).length);
  return h(
    "section",
    { class: "page" },
    h(
      "ul",
      { class: "names large" },
      full.map((run, i) =>
        h(
          "li",
          {},
          h("i", { class: `swatch ${color(i)}` }),
          h("a", { href: href("run", { run: run.id }) }, run.name),
          silent.includes(run) && h("span", { class: "note" }, " (no step yet)"),
        ),
      ),
    ),
    full.length === 2 &&
      h(
        "p",
        {},
        h(
          "a",
          { class: "button", href: href("compare", { run: full[0].id, b_run: full[1].id }) },
          "Compare their rollouts",
        ),
      ),
    full.length > 1 && configDifferences(full),
    h("div", { class: "grid-charts" }, [...bands.values()].map(card)),
  );
}

// What one run was told and another was not: the first suspect for curves that part.
function configDifferences(picked) {
  // A config that could not be read in full would differ in everything.
  const count = (run) => Object.keys(run.config ?? {}).length;
  const most = Math.max(...picked.map(count));
  const full = picked.filter((run) => count(run) > most / 2);
  if (full.length < 2) return null;
  const keys = [...new Set(full.flatMap((run) => Object.keys(run.config)))].sort();
  const text = (run, key) => (run.config[key] === undefined ? null : shownValue(run.config[key]));
  const apart = keys.filter((key) => new Set(full.map((run) => text(run, key))).size > 1);
  return h(
    "details",
    { class: "card", "data-key": "differences", open: apart.length <= 12 },
    h(
      "summary",
      {},
      h(
        "h2",
        {},
        "Config ",
        h("span", { class: "note" }, `${plural(apart.length, "key")} of ${keys.length} differ`),
      ),
    ),
    apart.length > 0 &&
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          { class: "config apart" },
          h(
            "thead",
            {},
            h("tr", {}, h("th", {}, "key"), full.map((run) => h("th", {}, run.name))),
          ),
          h(
            "tbody",
            {},
            apart.map((key) =>
              h(
                "tr",
                {},
                h("td", { class: "mono" }, key),
                full.map((run) => h("td", { class: "mono" }, text(run, key) ?? num(null))),
              ),
            ),
          ),
        ),
      ),
  );
}

export default { load, draw };
