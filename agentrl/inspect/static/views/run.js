// First screen of a run: what it is, what is wrong with it, its curves, its time, its waste.

import { get } from "../api.js";
import { empty, h } from "../dom.js";
import { lastPart, num, seconds, when } from "../format.js";
import { go, href, replace } from "../router.js";
import { dashboard, metricNames } from "./dashboard.js";
import { configuration, everyMetric, proofs } from "./every_metric.js";
import { findings } from "./findings.js";
import { timePanel, wastePanel } from "./ledger.js";
import { glance } from "./glance.js";
import { learned } from "./tasks/learned.js";
import { agreementCard } from "./labels/agreement.js";
import { livePanel } from "./live/panel.js";
import { early, notes, pauseNotice, statePill, stepsText } from "./parts.js";

async function load(params, signal) {
  const [run, all, pulse] = await Promise.all([
    get("run", { run: params.run }, signal),
    get("runs", {}, signal),
    get("pulse", { run: params.run }, signal),
  ]);
  return { run, brief: all.find((one) => one.id === params.run) ?? {}, pulse };
}

// First and last step anything was logged at: the axis all curves share.
function stepRange(run) {
  let [first, last] = [Infinity, -Infinity];
  for (const one of Object.values(run.metrics)) {
    if (!one.steps.length) continue;
    first = Math.min(first, one.steps[0]);
    last = Math.max(last, one.steps.at(-1));
  }
  return first > last ? null : [first, last];
}

function draw({ run, brief, pulse }, params) {
  const now = livePanel(pulse);
  const steps = stepRange(run);
  // `kind` is of the curve that was clicked, where it is one of an evaluation.
  const open = (step, kind) => {
    if (run.examples.length) go("examples", { run: params.run, step });
    else go("step", { run: params.run, ...(kind ? { kind, step } : placeOf(run, step)) });
  };
  const others = steps && everyMetric(run, steps, open, metricNames(run));
  // Another way to see the same place: the address follows, the history does not.
  const moved = (settings) => replace("run", { run: params.run, ...settings });
  const looked = (look) => others?.redraw(look);
  const parts = steps
    ? [
        glance(run, brief),
        learned(run, brief),
        findings(run, steps, params.run),
        agreementCard(run),
        dashboard(run, steps, open, params, { moved, looked }),
        h("div", { class: "pair" }, timePanel(run, open), wastePanel(run, open)),
        others?.node,
        proofs(run.proofs),
        configuration(run.config),
      ]
    : [
        h(
          "div",
          { class: "card" },
          empty(
            "No step yet",
            "This run has not logged anything so far. The page looks again every two seconds.",
          ),
        ),
        proofs(run.proofs),
        configuration(run.config),
      ];
  return {
    title: run.name,
    live: true,
    revision: run.revision,
    pulse: now.update,
    crumbs: [
      ["runs", href("runs")],
      [run.name, null],
    ],
    up: href("runs"),
    keys: [
      { keys: ["l"], shown: "l", what: "the latest step", run: () => steps && open(steps[1]) },
    ],
    node: h(
      "div",
      { class: "page run" },
      head(run, brief, steps),
      pauseNotice(run.paused),
      notes(run.notes),
      now.node,
      parts,
    ),
  };
}

// Step 0 was not trained: behind it lie the evaluations before training.
function placeOf(run, step) {
  if (step > 0) return { kind: "train", step };
  const name = Object.keys(run.evals)[0];
  return { kind: name ? `eval/${name}` : "train", step };
}

function ended({ reason, elapsed_s: elapsed }) {
  const after = elapsed === null || elapsed === undefined ? "" : ` after ${seconds(elapsed)}`;
  return `ended${after}${reason ? `: ${reason}` : ""}`;
}

function head(run, brief, steps) {
  const last = steps ? steps[1] : 0;
  const why = early({ ...run, ended: run.result?.reason ?? "", steps: brief.steps ?? last });
  const stepTime = run.metrics["timing_s/step"]?.values.at(-1);
  return h(
    "header",
    { class: "head" },
    h(
      "div",
      {},
      h("h1", {}, run.name, " ", statePill(run.state ?? brief.state, why)),
      h(
        "p",
        { class: "sub" },
        brief.model && h("span", { title: brief.model }, lastPart(brief.model)),
        h("span", {}, stepsText(brief.steps ?? last, run.planned_steps)),
        stepTime !== undefined && h("span", {}, `last step took ${seconds(stepTime)}`),
        brief.started && h("span", {}, `started ${when(brief.started)}`),
        run.result && h("span", {}, ended(run.result)),
        brief.path && h("span", { class: "mono" }, brief.path),
      ),
    ),
    h(
      "div",
      { class: "headline" },
      h(
        "p",
        { class: "actions" },
        run.examples.length > 0 &&
          h(
            "a",
            { class: "button", href: href("examples", { run: run.id }), "data-key": "examples" },
            "Examples",
          ),
        // A fit rolls nothing out, and has no groups to show.
        steps &&
          !run.examples.length &&
          h(
            "a",
            {
              class: "button",
              href: href("step", { run: run.id, ...placeOf(run, last) }),
              "data-key": "latest",
            },
            `Rollouts of step ${num(last)}`,
          ),
        steps &&
          !run.examples.length && [
            h(
              "a",
              { class: "button", href: href("tasks", { run: run.id }), "data-key": "tasks" },
              "Tasks",
            ),
            h(
              "a",
              { class: "button", href: href("compare", { run: run.id }), "data-key": "compare" },
              "Compare",
            ),
            h(
              "a",
              { class: "button", href: href("hacking", { run: run.id }), "data-key": "hacking" },
              "Hacked?",
            ),
          ],
        h(
          "a",
          { class: "button", href: href("find", { run: run.id }), "data-key": "find" },
          "Find",
        ),
      ),
    ),
  );
}

export default { load, draw };
