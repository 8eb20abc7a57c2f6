// One step: its groups, to be sorted by what went on in them.

import { get } from "../api.js";
import { empty, h } from "../dom.js";
import { column, kindName, lastPart, num, plural, words } from "../format.js";
import { go, href } from "../router.js";
import { REWARD_AND_SCORE, barRange, endedWell, endingsBar, meter, notes, sameScore, stepper } from "./parts.js";

const COLUMNS = [
  ["task_id", "task", "Each group tries one task several times"],
  ["n", "rollouts", "How many times it was tried"],
  ["reward_mean", "mean reward", "Over the rollouts of the group"],
  ["reward_std", "std", "Standard deviation of the reward inside the group; 0 teaches nothing"],
  ["score_mean", "score", "Mean of the environment's own 0 to 1 verdict"],
  ["terminations", "how they ended", "By itself, at a limit, or because something failed"],
  ["tokens", "sampled tokens", "What the policy wrote, over all rollouts of the group"],
];

// What a narrow screen leaves out; the group has it.
const WIDE = new Set(["n", "reward_std", "terminations", "tokens"]);

async function load(params, signal) {
  const { run, kind = "train", step } = params;
  return get("step", { run, kind, step }, signal);
}

function draw(data, params) {
  const { run } = params;
  const to = (step, kind = data.kind) => href("step", { run, kind, step });
  const move = (by) => {
    const next = data.steps[data.steps.indexOf(data.step) + by];
    if (next !== undefined) location.hash = to(next);
  };
  return {
    title: `${kindName(data.kind)} step ${data.step} of ${lastPart(run)}`,
    live: true,
    crumbs: [
      ["runs", href("runs")],
      [lastPart(run), href("run", { run })],
      [`${kindName(data.kind)} step ${data.step}`, null],
    ],
    up: href("run", { run }),
    keys: [
      {
        keys: ["ArrowLeft", "["],
        shown: "\u2190 or [",
        what: "the step before",
        run: () => move(-1),
      },
      {
        keys: ["ArrowRight", "]"],
        shown: "\u2192 or ]",
        what: "the step after",
        run: () => move(1),
      },
    ],
    node: h(
      "div",
      { class: "page" },
      h(
        "header",
        { class: "head" },
        h("div", {}, h("h1", {}, `Step ${data.step}`), h("p", { class: "sub" }, summary(data))),
        data.kinds.length > 0 && h(
          "div",
          { class: "actions" },
          kinds(data, run),
          h(
            "a",
            {
              class: "button",
              href: href("compare", { run, kind: data.kind, b_steps: data.step }),
              "data-key": "compare",
            },
            "Compare with another",
          ),
          stepper({ label: "step", at: data.step, all: data.steps, to }),
        ),
      ),
      notes(data.notes),
      data.groups.length
        ? h("div", { class: "card scroll" }, table(data, run), endings())
        : h("div", { class: "card" }, empty("No rollout is stored here", nothing(data))),
    ),
  };
}

function nothing(data) {
  if (!data.kinds.length) return "The first rollouts come with the first step.";
  if (!data.steps.length) return `Nothing of the kind "${data.kind}" is stored in this run.`;
  return `Steps with rollouts of this kind: ${data.steps[0]} to ${data.steps.at(-1)}.`;
}

function summary(data) {
  const { groups } = data;
  if (!groups.length) return null;
  const rollouts = groups.reduce((a, group) => a + group.n, 0);
  const dull = groups.filter((group) => group.zero_advantage).length;
  const rewards = groups.filter((group) => group.reward_mean !== null);
  const mean =
    rewards.reduce((a, group) => a + group.reward_mean * group.n, 0) /
    (rewards.reduce((a, group) => a + group.n, 0) || 1);
  return [
    h("span", {}, plural(groups.length, "group")),
    h("span", {}, plural(rollouts, "rollout")),
    rewards.length > 0 && h("span", {}, `mean reward ${num(mean)}`),
    data.kind === "train" && h("span", {}, `${dull} of ${groups.length} groups with zero advantage`),
  ];
}

function kinds(data, run) {
  if (data.kinds.length < 2) return null;
  return h(
    "select",
    {
      "aria-label": "Kind of rollouts",
      "data-key": "kind",
      onchange: (event) => go("step", { run, kind: event.target.value, step: data.step }),
    },
    data.kinds.map((kind) =>
      h("option", { value: kind, selected: kind === data.kind }, kindName(kind)),
    ),
  );
}

let order = { column: null, down: true };

function table(data, run) {
  const body = h("tbody");
  const same = sameScore(data.groups.map((one) => [one.reward_mean, one.score_mean]));
  const columns = COLUMNS.filter(([key]) => !same || key !== "score_mean");
  const heads = columns.map(([key, own, what]) => {
    const name = same && key === "reward_mean" ? `mean ${REWARD_AND_SCORE}` : own;
    const button = h("button", { title: `${what}. Click to sort.`, onclick: () => sort(key) }, name);
    const cls = [isNumber(key) && "n", WIDE.has(key) && "wide"].filter(Boolean).join(" ");
    return { key, node: h("th", { class: cls }, button) };
  });
  const range = barRange(data.groups.map((group) => group.reward_mean ?? 0));
  const fill = () => {
    const { column, down } = order;
    const value = (group) =>
      column === "terminations" ? -endedWell(group.terminations) : group[column];
    const groups = column
      ? [...data.groups].sort((a, b) => compare(value(a), value(b)) * (down ? -1 : 1))
      : data.groups;
    body.replaceChildren(...groups.map((group) => row(group, data, run, range, same)));
    for (const { key, node } of heads)
      node.setAttribute("aria-sort", key !== column ? "none" : down ? "descending" : "ascending");
  };
  const sort = (key) => {
    order = { column: key, down: order.column === key ? !order.down : key !== "task_id" };
    fill();
  };
  fill();
  return h(
    "table",
    { class: "groups" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        heads.map((head) => head.node),
      ),
    ),
    body,
  );
}

function endings() {
  const marks = [
    ["good", "ended by itself"],
    ["warn", "at a limit, or without an action"],
    ["fail", "failed, stopped or too old"],
  ];
  return h(
    "ul",
    { class: "names marks below" },
    marks.map(([level, text]) => h("li", {}, h("i", { class: `swatch ${level}` }), text)),
  );
}

function compare(a, b) {
  if (typeof a === "string") return a.localeCompare(b);
  return (a ?? -Infinity) - (b ?? -Infinity);
}

function isNumber(key) {
  return !["task_id", "terminations", "reward_mean"].includes(key);
}

function row(group, data, run, range, same) {
  const to = href("group", { run, kind: data.kind, step: data.step, group: group.group_id });
  return h(
    "tr",
    { "data-item": "", class: group.zero_advantage ? "dull" : "" },
    h(
      "td",
      {},
      h("a", { class: "strong", href: to, "data-key": group.group_id }, group.task_id),
      group.zero_advantage &&
        data.kind === "train" && [
          " ",
          h(
            "span",
            { class: "pill", title: "All rollouts of this group have one advantage: zero" },
            "zero advantage",
          ),
        ],
      paidWrong(group, data, run),
    ),
    h("td", { class: "n wide" }, num(group.n)),
    h(
      "td",
      {},
      meter(group.reward_mean, range),
      column(group.reward_mean),
    ),
    h("td", { class: "n wide" }, column(group.reward_std)),
    !same && h("td", { class: "n" }, column(group.score_mean)),
    h("td", { class: "wide" }, endingsBar(group.terminations, group.n)),
    h("td", { class: "n wide" }, num(group.tokens)),
  );
}

// Rollouts whose reward and score disagree, each a link to itself.
function paidWrong({ paid_wrong: wrong, right_unpaid: unpaid }, data, run) {
  return [marked(wrong, "fail", "paid, wrong", data, run), marked(unpaid, "warn", "right, not paid", data, run)];
}

function marked(found, level, name, data, run) {
  if (!found.length) return null;
  const to = (rollout) => href("rollout", { run, kind: data.kind, step: data.step, rollout });
  return h(
    "span",
    { class: "paid-wrong" },
    " ",
    h("span", { class: `pill ${level}` }, `${num(found.length)} ${name}`),
    found.map((id) => [
      " ",
      h("a", { href: to(id), title: id, "data-key": `${name} ${id}` }, lastPart(id)),
    ]),
  );
}

export default { load, draw };
