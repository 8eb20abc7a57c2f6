// Clusters of near-identical answers to different tasks, drawn when they are there.

import { empty, h, longText } from "../../dom.js";
import { column, kindName, num, percent, plural, withoutFence } from "../../format.js";
import { go, href } from "../../router.js";
import { stepsName } from "../tasks/score_cell.js";

const FIRST = 400;

// `more` is the line below the answer that says what the clusters add to it.
export function clusters(data, params, more) {
  const body = h(
    "div",
    { role: "status" },
    h("p", { class: "note" }, "Comparing answers; the first time takes some seconds on a large run."),
  );
  data.alike.then(({ found, error }) => {
    if (error?.name === "AbortError") return;
    if (error) body.replaceChildren(h("p", { class: "error" }, error.message));
    else body.replaceChildren(...drawn(found, params, more));
  });
  return h(
    "section",
    { class: "card", id: "clusters", "aria-label": "Near-identical answers" },
    h(
      "div",
      { class: "row" },
      h("h2", {}, "Near-identical answers to different tasks"),
      among(data.rewards, params),
    ),
    body,
  );
}

function among(rewards, params) {
  const { steps, step } = rewards;
  // As many as the counts of the page compare at either end.
  const part = Math.max(1, Math.min(Math.max(2, Math.min(10, Math.floor(steps.length / 4))), Math.floor(steps.length / 2)));
  const options = [
    ["", "all steps"],
    [`${steps.at(-part)}-${steps.at(-1)}`, `the newest steps, ${stepsName([steps.at(-part), steps.at(-1)])}`],
    [`${step}`, `step ${num(step)}`],
  ];
  const chosen = params.among ?? "";
  if (!options.some(([value]) => value === chosen)) options.push([chosen, `steps ${chosen}`]);
  return h(
    "select",
    {
      "aria-label": "Steps whose answers are compared",
      "data-key": "among",
      onchange: (event) => go("hacking", { ...params, among: event.target.value }),
    },
    options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)),
  );
}

function drawn(found, params, more) {
  const [first, last] = found.steps;
  const looked = h(
    "p",
    { class: "note" },
    `${plural(found.rollouts, "rollout")} of ${kindName(found.kind)} steps ${num(first)} to ${num(last)}, ${plural(found.tasks, "task")}; mean reward ${num(found.reward)}, mean score ${num(found.score)}.`,
    " Near-identical: 0.7 of their 5-character pieces in common, without case, space and numbers.",
    found.without_text > 0 && ` ${plural(found.without_text, "rollout")} without any text.`,
  );
  const odd = found.clusters.filter((one) => one.paid_wrong);
  if (odd.length) {
    const rollouts = odd.reduce((sum, one) => sum + one.rollouts, 0);
    more.hidden = false;
    more.replaceChildren(
      `${plural(odd.length, "cluster")} of near-identical answers (${plural(rollouts, "rollout")}) with answers that are paid and wrong: `,
      h(
        "button",
        {
          class: "quiet",
          onclick: () => document.getElementById("clusters")?.scrollIntoView({ block: "start" }),
        },
        "show them",
      ),
    );
  }
  if (!found.clusters.length)
    return [
      empty("None", "No answer was given to four different tasks in nearly the same words."),
      looked,
    ];
  return [
    looked,
    h(
      "ol",
      { class: "clusters" },
      found.clusters.map((one) => cluster(one, found, params.run)),
    ),
  ];
}

function verdict(one) {
  const tasks = `same text in ${plural(one.tasks, "task")}`;
  const bad = one.paid_wrong > 0;
  const text = bad ? `${tasks}: paid and wrong in ${num(one.paid_wrong)}` : tasks;
  return h("span", { class: bad ? "pill warn" : "" }, text);
}

function cluster(one, found, run) {
  const [first, last] = found.steps;
  const members = href("find", {
    run,
    kind: found.kind,
    like: one.rollout_id,
    step_min: first,
    step_max: last,
  });
  const fact = (name, value, cls = "") =>
    h("div", {}, h("dt", {}, name), h("dd", { class: cls }, value));
  return h(
    "li",
    { "data-item": "" },
    h(
      "p",
      { class: "row" },
      h("a", { class: "strong", href: members, "data-key": `cluster ${one.rollout_id}` }, plural(one.rollouts, "rollout")),
      verdict(one),
      one.solves && h("span", { class: "pill good" }, "by the score it solves all its tasks"),
    ),
    h(
      "dl",
      { class: "cluster-facts" },
      fact("mean reward", column(one.reward), one.paid_wrong ? "warn-ink" : ""),
      fact("mean score", column(one.score), one.paid_wrong ? "warn-ink" : ""),
      fact("steps", one.steps[0] === one.steps[1] ? num(one.steps[0]) : `${num(one.steps[0])} to ${num(one.steps[1])}`),
      fact("of all rollouts", one.ends.map((ends, i) => `${percent(one.shares[i])} in ${stepsName(ends)}`).join(", ")),
    ),
    longText(withoutFence(one.text), { first: FIRST }),
    h(
      "p",
      { class: "note" },
      "from ",
      h(
        "a",
        { href: href("rollout", { run, kind: found.kind, step: one.step, rollout: one.rollout_id }) },
        one.rollout_id,
      ),
    ),
  );
}
