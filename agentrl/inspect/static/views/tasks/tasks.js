// Tasks of a run, before and after: what it learned, and what it forgot.

import { get } from "../../api.js";
import { empty, h } from "../../dom.js";
import { kindName, lastPart, num, plural } from "../../format.js";
import { go, href } from "../../router.js";
import { barRange, notes } from "../parts.js";
import { byLabel, changed } from "./by_label.js";
import { changeLevel, changeWords, intervalText } from "./change_text.js";
import { scoreCell, scoreColumns, stepsName } from "./score_cell.js";
import { taskFilters } from "./task_filters.js";

const PAGE = 100;
const ORDERS = [
  ["gain", "Gained most"],
  ["loss", "Lost most"],
  ["after", "Lowest after"],
  ["task", "By name"],
];
const ASKED = ["kind", "before", "after", "measure", "q", "was", "label", "sort", "offset"];

async function load(params, signal) {
  const asked = Object.fromEntries(ASKED.map((name) => [name, params[name]]));
  return get("tasks", { run: params.run, limit: PAGE, ...asked }, signal);
}

function draw(data, params) {
  const { run } = params;
  return {
    title: `Tasks of ${lastPart(run)}`,
    live: true,
    crumbs: [
      ["runs", href("runs")],
      [lastPart(run), href("run", { run })],
      ["tasks", null],
    ],
    up: href("run", { run }),
    keys: [
      { keys: ["]"], shown: "]", what: "next page of tasks", run: () => turnPage(data, params, 1) },
      { keys: ["["], shown: "[", what: "page before", run: () => turnPage(data, params, -1) },
    ],
    node: h(
      "div",
      { class: "page" },
      h(
        "header",
        { class: "head" },
        h(
          "div",
          {},
          h("h1", {}, "Tasks"),
          h(
            "p",
            { class: "sub" },
            h("span", {}, kindName(data.kind)),
            h("span", {}, `${stepsName(data.before)} against ${stepsName(data.after)}`),
            h("span", {}, plural(data.all, "task")),
          ),
        ),
        h(
          "div",
          { class: "actions" },
          h("a", { class: "button", href: compareAddress(data, run) }, "Compare these rollouts"),
        ),
      ),
      notes(data.notes),
      taskFilters(data, params),
      data.once && h("p", { class: "note" }, data.once),
      summary(data),
      byLabel(data, params),
      table(data, params),
    ),
  };
}

export function stepsText([first, last]) {
  return first === last ? String(first) : `${first}-${last}`;
}

function compareAddress(data, run) {
  return href("compare", {
    run,
    kind: data.kind,
    steps: stepsText(data.before),
    b_kind: data.kind,
    b_steps: stepsText(data.after),
  });
}

function summary(data) {
  const { change, measure } = data;
  if (!change) {
    const text = `No task was tried both in ${stepsName(data.before)} and in ${stepsName(data.after)}. Choose other steps, or an evaluation.`;
    return h("div", { class: "card" }, empty("Nothing to compare", text));
  }
  const same = change.tasks - change.gained - change.lost;
  const single = data.tasks.some((one) => one.before?.n === 1 && one.after?.n === 1);
  return h(
    "section",
    { class: "card learned-sum", "aria-label": "Change over all tasks" },
    h(
      "p",
      { class: "big" },
      `Mean ${measure} ${num(change.before)} \u2192 ${num(change.after)}, change `,
      h("b", { class: `${changeLevel(change)}-ink` }, intervalText(change)),
    ),
    h("p", { class: "note" }, changeWords(change)),
    h(
      "p",
      {},
      h("b", {}, num(change.gained)),
      " gained, ",
      h("b", {}, num(change.lost)),
      ` lost, ${num(same)} unchanged.`,
      single &&
        h(
          "span",
          { class: "note" },
          " With one rollout a task, a single task may change by chance.",
        ),
    ),
  );
}

function turnPage(data, params, by) {
  const offset = Number(params.offset ?? 0) + by * PAGE;
  if (offset >= 0 && offset < data.total) go("tasks", { ...params, offset: offset || "" });
}

function table(data, params) {
  if (!data.tasks.length)
    return h("div", { class: "card" }, empty("No task fits", "Take a filter away."));
  const { run } = params;
  const cells = data.tasks.flatMap((one) => [one.before, one.after, ...one.over]);
  const range = barRange(cells.map((cell) => cell?.mean ?? 0));
  const place = { run, kind: data.kind, range };
  const heads = [
    ["task", ""],
    ["before", "n"],
    ["after", "n"],
    ["change", "n"],
    ["first solved", "n wide"],
    ["solved in", "n wide"],
    [columnsName(data), "over"],
  ];
  return h(
    "section",
    { class: "card scroll" },
    h("div", { class: "row" }, orders(data, params), pager(data, params)),
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
        data.tasks.map((one) =>
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
                  href: href("task", { run, task: one.task_id }),
                  "data-key": `task ${one.task_id}`,
                },
                one.task_id,
              ),
              labelNotes(one.labels),
            ),
            h(
              "td",
              { class: "n" },
              scoreCell(one.before, { ...place, steps: data.before, name: "before" }),
            ),
            h(
              "td",
              { class: "n" },
              scoreCell(one.after, { ...place, steps: data.after, name: "after" }),
            ),
            h("td", { class: "n" }, changed(one.change)),
            h("td", { class: "n wide" }, one.solved.first === null ? "never" : `step ${num(one.solved.first)}`),
            h(
              "td",
              { class: "n wide", title: "Steps in which a rollout solved it, of those that tried it" },
              `${num(one.solved.solved)} of ${plural(one.solved.steps, "step")}`,
            ),
            h("td", { class: "over" }, scoreColumns(one.over, data.columns, place)),
          ),
        ),
      ),
    ),
  );
}

function columnsName({ columns, measure }) {
  if (columns.some(([a, b]) => a !== b)) return `${measure} in ${columns.length} ranges of steps`;
  if (columns.length > 4) return `${measure} at ${columns.length} steps`;
  return `${measure} at ${plural(columns.length, "step").replace(/^\S+ /, "")} ${columns.map(([a]) => num(a)).join(", ")}`;
}

export function labelNotes(labels) {
  const entries = Object.entries(labels);
  if (!entries.length) return null;
  return h(
    "div",
    { class: "note" },
    entries.map(([name, values]) => `${name} ${values.join(", ")}`).join("; "),
  );
}

function orders(data, params) {
  const sort = params.sort ?? "gain";
  return h(
    "nav",
    { class: "tabs", "aria-label": "Order of the tasks" },
    ORDERS.map(([name, text]) =>
      h(
        "a",
        {
          class: "button",
          href: href("tasks", { ...params, sort: name, offset: "" }),
          "aria-current": name === sort ? "page" : null,
        },
        text,
      ),
    ),
  );
}

function pager(data, params) {
  if (data.total <= PAGE) return h("span", { class: "note" }, plural(data.total, "task"));
  const offset = Number(params.offset ?? 0);
  const link = (by, text, what) => {
    const to = offset + by * PAGE;
    const there = to >= 0 && to < data.total;
    return h(
      there ? "a" : "span",
      {
        class: "button",
        "aria-label": what,
        "aria-disabled": there ? null : "true",
        href: there ? href("tasks", { ...params, offset: to || "" }) : null,
      },
      text,
    );
  };
  return h(
    "span",
    { class: "stepper" },
    h(
      "span",
      { class: "note" },
      `${num(offset + 1)} to ${num(offset + data.tasks.length)} of ${plural(data.total, "task")}`,
    ),
    link(-1, "\u2039", "page before"),
    link(1, "\u203a", "next page"),
  );
}

export default { load, draw };
