// One task over all steps and evaluations: when it was solved, and the group of each time.

import { get } from "../../api.js";
import { h, longText } from "../../dom.js";
import { column, kindName, lastPart, num, plural, withoutFence } from "../../format.js";
import { go, href } from "../../router.js";
import { curveCard } from "../curve_card.js";
import { REWARD_AND_SCORE, endingsBar, notes, reward, sameScore, termination } from "../parts.js";
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
      data.solved.map((text) => h("p", { class: "outcome-line" }, text)),
      charts(data, run, [...steps]),
      firstAndLast(data, run),
      (data.ends.length === 0 || data.attempts.rollouts.length > 1) && attempts(data, run),
      data.once && alike(data, run),
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
  const same = isSame(data);
  const card = (name, title, what) =>
    curveCard({
      title,
      what,
      unit: same ? "reward" : name,
      // A task is known only where it was tried: nothing was measured in between.
      series: kinds.map((kind, i) => ({ ...series(data, kind, name), dashed: true, color: `c${i % 8}` })),
      steps: range,
      zero: true,
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
      same ? "Reward = score" : "Score",
      "Mean over the rollouts of the task; the reward where there is no score.",
    ),
    !same &&
      card("reward", "Reward", "Mean over the rollouts of the task, as they were trained on."),
  );
}

// The newest answers, by which a reader sees what a score stands for.
function attempts({ attempts: { kind, step, rollouts }, once }, run) {
  const same = sameScore(rollouts.map((one) => [one.reward, one.score]));
  const where = `${kindName(kind)} step ${num(step)}`;
  return h(
    "section",
    { class: "card", "aria-label": "Attempts" },
    h("h2", {}, once ? `Tried only in ${where}` : `Answers of the last ${kind === "train" ? "step" : "evaluation"}: ${where}`),
    h(
      "p",
      { class: "note" },
      once && "One step is no curve. ",
      `${plural(rollouts.length, "attempt")}${rollouts.length > 1 ? ", the best first" : ""}:`,
    ),
    h(
      "ul",
      { class: "attempts" },
      rollouts.map((one) =>
        h(
          "li",
          { "data-item": "" },
          h(
            "p",
            { class: "row" },
            h(
              "a",
              {
                class: "strong",
                href: href("rollout", { run, kind, step, rollout: one.rollout_id }),
                "data-key": one.rollout_id,
              },
              `attempt ${lastPart(one.rollout_id)}`,
            ),
            h("span", {}, h("span", { class: "note" }, same ? `${REWARD_AND_SCORE} ` : "reward "), reward(one.reward)),
            !same && h("span", {}, h("span", { class: "note" }, "score "), num(one.score)),
            termination(one.termination),
          ),
          longText(withoutFence(one.text) || "(nothing)"),
        ),
      ),
    ),
  );
}

// What the policy answered before and after, each with its score and the reason of it.
function firstAndLast({ ends }, run) {
  if (!ends.length) return null;
  return h(
    "section",
    { class: "card", "aria-label": "First and last answer" },
    h("h2", {}, "First and last answer", h("span", { class: "note" }, " the best of each step")),
    h(
      "div",
      { class: "pair even" },
      ends.map((one) =>
        h(
          "div",
          { "data-item": "" },
          h(
            "p",
            {},
            h(
              "a",
              {
                class: "strong",
                href: href("rollout", { run, kind: one.kind, step: one.step, rollout: one.rollout_id }),
                "data-key": `end ${one.step}`,
              },
              `${kindName(one.kind)} step ${num(one.step)}`,
            ),
            ` score ${num(one.score ?? one.reward)}`,
            one.said && `: ${one.said.split("\n")[0]}`,
          ),
          longText(withoutFence(one.text) || "(nothing)"),
        ),
      ),
    ),
  );
}

// A task of one step has no curve: tasks like it are shown over the steps.
function alike(data, run) {
  if (!data.alike.length) return null;
  const [{ kind, step }] = data.groups;
  return h(
    "div",
    { class: "grid-charts" },
    data.alike.map((one) =>
      curveCard({
        title: `${one.label} ${one.value}`,
        unit: "score",
        what: `Mean score of the ${plural(one.tasks, "task")} with ${one.label} ${one.value}, over the steps that tried any of them.`,
        series: [{ name: one.value, steps: one.steps, values: one.values, color: "c0" }],
        steps: [one.steps[0], one.steps.at(-1)],
        zero: true,
        marks: [{ step, level: "", text: `step ${step}: this task` }],
        label: `Score of tasks with ${one.label} ${one.value} by step`,
        key: `alike ${one.label} ${one.value}`,
        open: (at) => go("step", { run, kind, step: at }),
      }),
    ),
  );
}

function isSame(data) {
  return sameScore(data.groups.map((one) => [one.reward.mean, one.score.mean]));
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
  const same = isSame(data);
  const heads = [
    ["when", ""],
    ["rollouts", "n"],
    [same ? REWARD_AND_SCORE : "score", "n"],
    ["std", "n wide"],
    !same && ["reward", "n"],
    ["how they ended", "wide"],
  ].filter(Boolean);
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
            !same && h("td", { class: "n" }, column(one.reward.mean)),
            h("td", { class: "wide" }, endingsBar(one.terminations, one.n)),
          ),
        ),
      ),
    ),
  );
}

export default { load, draw };
