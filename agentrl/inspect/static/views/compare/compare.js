// Two sets of rollouts side by side: what differs in reward, endings, length and tools, and the
// same task failed in one and solved in the other.

import { get } from "../../api.js";
import { empty, h } from "../../dom.js";
import { kindName, lastPart, num, percent, plural, signed, words } from "../../format.js";
import { href } from "../../router.js";
import { notes, termination } from "../parts.js";
import { changeLevel, changeWords, intervalText } from "../tasks/change_text.js";
import { stepsName } from "../tasks/score_cell.js";
import { sideForm } from "./side_form.js";

const ASKED = ["kind", "steps", "b_run", "b_kind", "b_steps"];
const NAMES = { duration_s: "seconds" };
const GROUPS = {
  "": "Score and reward",
  "part of the reward": "Parts of the reward",
  length: "Length",
  tools: "Tools",
};

async function load(params, signal) {
  const asked = Object.fromEntries(ASKED.map((name) => [name, params[name]]));
  const [runs, data] = await Promise.all([
    get("runs", {}, signal),
    get("compare", { run: params.run, ...asked }, signal),
  ]);
  return { runs, data };
}

export function sideName(side, other) {
  const where = `${kindName(side.kind)} ${stepsName(side.steps)}`;
  return side.run === other.run ? where : `${side.name}, ${where}`;
}

function draw({ runs, data }, params) {
  const { run } = params;
  const [a, b] = data.sides;
  const names = [sideName(a, b), sideName(b, a)];
  return {
    title: `${names[0]} against ${names[1]}`,
    crumbs: [
      ["runs", href("runs")],
      [lastPart(run), href("run", { run })],
      ["compare", null],
    ],
    up: href("run", { run }),
    node: h(
      "div",
      { class: "page" },
      h("header", { class: "head" }, h("div", {}, h("h1", {}, "Compare"), sub(data))),
      notes(data.notes),
      sideForm(runs, data, params),
      summary(data),
      numbers(data, names),
      endings(data, names),
      h(
        "div",
        { class: "pair even" },
        pairs(data, "solved", "Failed \u2192 solved", "failed in A, solved in B"),
        pairs(data, "lost", "Solved \u2192 failed", "solved in A, failed in B"),
      ),
    ),
  };
}

function sub(data) {
  return h(
    "p",
    { class: "sub" },
    data.sides.map((side, i) =>
      h(
        "span",
        {},
        h("b", {}, i ? "B " : "A "),
        `${sideName(side, data.sides[1 - i])}: ${plural(side.rollouts, "rollout")}, ${plural(side.tasks, "task")}`,
      ),
    ),
  );
}

function summary(data) {
  const { a, b, change, paired } = data.numbers[0];
  if (a === null || b === null || change === null) return null;
  return h(
    "section",
    { class: "card learned-sum", "aria-label": "Change of the score" },
    h(
      "p",
      { class: "big" },
      `Mean score ${num(a.mean)} \u2192 ${num(b.mean)}, change `,
      h(
        "b",
        { class: `${changeLevel(paired)}-ink` },
        paired ? intervalText(paired) : signed(change),
      ),
    ),
    h(
      "p",
      { class: "note" },
      paired
        ? changeWords(paired)
        : "no task was tried in both, so the tasks themselves may differ",
    ),
  );
}

function numbers(data, names) {
  const groups = [...new Set(data.numbers.map((one) => one.group))];
  const heads = [
    ["", ""],
    [sideHead("A", names[0]), "n"],
    [sideHead("B", names[1]), "n"],
    ["change", "n"],
    ["paired by task", "n wide"],
  ];
  return h(
    "section",
    { class: "card scroll" },
    h("h2", {}, "Numbers of a rollout"),
    h("p", { class: "note" }, "Mean \u00b1 std over the rollouts."),
    h(
      "table",
      { class: "tasks compared" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          heads.map(([name, cls]) => h("th", { class: cls }, name)),
        ),
      ),
      groups.map((group) =>
        h(
          "tbody",
          {},
          h("tr", {}, h("th", { colspan: 5, scope: "rowgroup" }, GROUPS[group] ?? group)),
          data.numbers.filter((one) => one.group === group).map(numberRow),
        ),
      ),
    ),
  );
}

// On a narrow screen the letter alone: what it stands for is said at the top of the page.
function sideHead(letter, name) {
  return [letter, h("span", { class: "wide" }, `: ${name}`)];
}

function numberRow(one) {
  const paired = one.paired;
  // More reward is better; a longer rollout or more calls are neither good nor bad.
  const judged = one.group === "" || one.group === "part of the reward";
  const level = judged ? changeLevel(paired) : "";
  const sure = paired && paired.low !== null && (paired.low > 0 || paired.high < 0);
  return h(
    "tr",
    { "data-item": "" },
    h("td", {}, NAMES[one.name] ?? words(one.name)),
    h("td", { class: "n" }, spread(one.a)),
    h("td", { class: "n" }, spread(one.b)),
    h("td", { class: `n ${level ? `${level}-ink` : ""}` }, signed(one.change)),
    h(
      "td",
      { class: "n wide" },
      paired
        ? h(sure ? "b" : "span", { title: changeWords(paired) }, intervalText(paired))
        : h("span", { class: "note" }, num(null)),
    ),
  );
}

function spread(value) {
  if (!value || value.mean === null) return num(null);
  return [num(value.mean), h("span", { class: "note" }, ` \u00b1 ${num(value.std)}`)];
}

function endings(data, names) {
  const heads = [
    ["", ""],
    [sideHead("A", names[0]), "n"],
    [sideHead("B", names[1]), "n"],
    ["change", "n"],
  ];
  return h(
    "section",
    { class: "card scroll" },
    h("h2", {}, "How rollouts ended"),
    h(
      "table",
      { class: "tasks compared" },
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
        data.endings.map(({ name, a, b, shares }) =>
          h(
            "tr",
            { "data-item": "" },
            h("td", {}, termination(name)),
            h(
              "td",
              { class: "n" },
              percent(shares[0], 1),
              h("span", { class: "note" }, ` (${num(a)})`),
            ),
            h(
              "td",
              { class: "n" },
              percent(shares[1], 1),
              h("span", { class: "note" }, ` (${num(b)})`),
            ),
            h("td", { class: "n" }, points(shares[1] - shares[0])),
          ),
        ),
      ),
    ),
  );
}

function points(by) {
  return `${by > 0 ? "+" : ""}${(100 * by).toFixed(1).replace("-", "\u2212")} points`;
}

export function pairAddress(sides, entry) {
  const { a, b } = entry;
  return href("pair", {
    run: sides[0].run,
    kind: a.kind,
    step: a.step,
    rollout: a.rollout_id,
    b_run: sides[1].run === sides[0].run ? "" : sides[1].run,
    b_kind: b.kind,
    b_step: b.step,
    b_rollout: b.rollout_id,
  });
}

function pairs(data, which, title, what) {
  const found = data[which];
  const count = data[`${which}_count`];
  const none = data.common_tasks
    ? `No task ${what}.`
    : "No task was tried in both: choose other steps, or an evaluation.";
  return h(
    "section",
    { class: "card" },
    h("h2", {}, title, " ", h("span", { class: "note" }, plural(count, "task"))),
    !found.length && h("p", { class: "note" }, none),
    h(
      "ul",
      { class: "pair-list" },
      found.map((entry) =>
        h(
          "li",
          { "data-item": "" },
          h(
            "a",
            {
              class: "strong",
              href: pairAddress(data.sides, entry),
              "data-key": `${which} ${entry.task_id}`,
              title: "Both rollouts side by side",
            },
            entry.task_id,
          ),
          h(
            "span",
            { class: "note" },
            `${num(entry.a.score ?? entry.a.reward)} \u2192 ${num(entry.b.score ?? entry.b.reward)}`,
          ),
        ),
      ),
    ),
    count > found.length &&
      h("p", { class: "note" }, `the ${found.length} that moved most of ${num(count)}`),
  );
}

export default { load, draw };
