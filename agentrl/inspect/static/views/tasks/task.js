// One task over all steps and evaluations: when it was solved, and the group of each time.

import { get } from "../../api.js";
import { h, longText } from "../../dom.js";
import { column, kindName, lastPart, num, plural } from "../../format.js";
import { go, href } from "../../router.js";
import { curveCard } from "../curve_card.js";
import { endingsBar, notes } from "../parts.js";
import { labelNotes } from "./tasks.js";

// A prompt of this size is read at a glance, and stands open.
const SHORT = 1500;

async function load(params, signal) {
  return get("task", { run: params.run, task: params.task }, signal);
}

function draw(data, params) {
  const { run } = params;
  const steps = new Set(data.groups.map((one) => one.step));
  return {
    title: `${data.task_id} of ${lastPart(run)}`,
    live: true,
    crumbs: [
      ["runs", href("runs")],
      [lastPart(run), href("run", { run })],
      ["tasks", href("tasks", { run })],
      [data.task_id, null],
    ],
    up: href("tasks", { run }),
    node: h(
      "div",
      { class: "page" },
      h(
        "header",
        { class: "head" },
        h(
          "div",
          {},
          h("h1", {}, data.task_id),
          h(
            "p",
            { class: "sub" },
            h("span", {}, `tried in ${plural(data.groups.length, "group")}`),
            h("span", {}, plural(steps.size, "step")),
            labelNotes(data.labels),
          ),
        ),
      ),
      notes(data.notes),
      charts(data, run, [...steps]),
      groups(data, run),
      h(
        "details",
        { class: "card prompt", "data-key": "prompt", open: data.prompt_text.length < SHORT },
        h("summary", {}, h("h2", {}, "Prompt")),
        longText(data.prompt_text),
      ),
    ),
  };
}

function charts(data, run, steps) {
  if (steps.length < 2) return null;
  const kinds = [...new Set(data.groups.map((one) => one.kind))].sort();
  const range = [Math.min(...steps), Math.max(...steps)];
  const apart = data.groups.some((one) => one.score.mean !== one.reward.mean);
  const card = (name, title, what) =>
    curveCard({
      title,
      what,
      series: kinds.map((kind, i) => ({ ...series(data, kind, name), color: `c${i % 8}` })),
      steps: range,
      label: `${title} of the task by step`,
      key: `task ${name}`,
      open: (step) => {
        const one = data.groups.find((group) => group.step === step);
        if (one) go("group", { run, kind: one.kind, step, group: one.group_id });
      },
    });
  return h(
    "div",
    { class: "grid-charts" },
    card(
      "score",
      "Score",
      "Mean over the rollouts of the task; the reward where there is no score.",
    ),
    apart &&
      card("reward", "Reward", "Mean over the rollouts of the task, as they were trained on."),
  );
}

// A task may be in one step twice, in an epoch's end and the next one's beginning.
function series(data, kind, name) {
  const sums = new Map();
  for (const one of data.groups) {
    if (one.kind !== kind || one[name].mean === null) continue;
    const [sum, n] = sums.get(one.step) ?? [0, 0];
    sums.set(one.step, [sum + one[name].mean * one[name].n, n + one[name].n]);
  }
  const steps = [...sums.keys()].sort((a, b) => a - b);
  return {
    name: kindName(kind),
    steps,
    values: steps.map((step) => sums.get(step)[0] / sums.get(step)[1]),
  };
}

function groups(data, run) {
  const heads = [
    ["when", ""],
    ["rollouts", "n"],
    ["score", "n"],
    ["std", "n wide"],
    ["reward", "n"],
    ["how they ended", "wide"],
  ];
  return h(
    "section",
    { class: "card scroll" },
    h("h2", {}, "Every group of this task"),
    h(
      "table",
      { class: "tasks" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          heads.map(([name, cls]) => h("th", { class: cls }, name)),
        ),
      ),
      h(
        "tbody",
        {},
        data.groups.map((one) =>
          h(
            "tr",
            { "data-item": "" },
            h(
              "td",
              {},
              h(
                "a",
                {
                  class: "strong",
                  href: href("group", { run, kind: one.kind, step: one.step, group: one.group_id }),
                  "data-key": `${one.kind} ${one.group_id}`,
                },
                `${kindName(one.kind)} step ${num(one.step)}`,
              ),
            ),
            h("td", { class: "n" }, num(one.n)),
            h("td", { class: "n" }, column(one.score.mean)),
            h("td", { class: "n wide" }, column(one.score.n > 1 ? one.score.std : null)),
            h("td", { class: "n" }, column(one.reward.mean)),
            h("td", { class: "wide" }, endingsBar(one.terminations, one.n)),
          ),
        ),
      ),
    ),
  );
}

export default { load, draw };
