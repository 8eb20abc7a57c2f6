// Two sets of rollouts side by side: what differs in reward, endings, length and tools, and the
// same task failed in one and solved in the other.

import { get } from "../../api.js";
import { empty, h } from "../../dom.js";
import { kindName, lastPart, num, plural, signed, words } from "../../format.js";
import { href } from "../../router.js";
import { notes, termination } from "../parts.js";
import { byLabel } from "../tasks/by_label.js";
import { changeLevel, changeWords, intervalText } from "../tasks/change_text.js";
import { stepsName } from "../tasks/score_cell.js";
import { sideForm } from "./side_form.js";

const ASKED = ["kind", "steps", "b_run", "b_kind", "b_steps"];
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
      !data.common_tasks && byLabel(data, { run, kind: a.kind }),
      numbers(data, names),
      endings(data, names),
      data.common_tasks > 0 && h(
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
  const { a, b, change, paired, title } = data.numbers[0];
  if (a === null || b === null || change === null) return null;
  if (!data.common_tasks) return apart(data);
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
    paired && h("p", { class: "note" }, changeWords(paired)),
    title !== "score" && h("p", { class: "note" }, `Here ${title}: one number with these names.`),
  );
}

// Two sets that share no task: that is said before any number, and where the question has an answer.
function apart(data) {
  const [a, b] = data.sides;
  const [before, after] = [data.numbers[0].a, data.numbers[0].b];
  const evaluations = Object.entries(a.kinds).filter(
    ([kind, steps]) => kind !== "train" && (b.kinds[kind] ?? []).length && (a.run !== b.run || steps.length > 1),
  );
  const to = ([kind, steps]) =>
    href("compare", {
      run: a.run,
      kind,
      steps: a.run === b.run ? steps[0] : steps.at(-1),
      b_run: b.run === a.run ? "" : b.run,
      b_kind: kind,
      b_steps: b.kinds[kind].at(-1),
    });
  return h(
    "section",
    { class: "card learned-sum", "aria-label": "No task in common" },
    h("p", { class: "big" }, "A and B share no task, so their scores do not say which is better."),
    h(
      "p",
      { class: "note" },
      `Mean score ${num(before.mean)} on ${plural(a.tasks, "task")} of A, ${num(after.mean)} on ${plural(b.tasks, "other task")} of B. `,
      Object.keys(data.by_label).length
        ? "Below: by labels of the tasks, endings, lengths and tools."
        : "Below: endings, lengths and tools.",
    ),
    evaluations.length > 0 &&
      h(
        "p",
        {},
        "The same tasks before and after: ",
        evaluations.map((one) =>
          h("a", { class: "button", href: to(one), "data-key": `compare ${one[0]}` }, kindName(one[0])),
        ),
      ),
  );
}

function numbers(data, names) {
  const shown = data.numbers.filter((one) => !one.same_as);
  const groups = [...new Set(shown.map((one) => one.group))];
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
          shown.filter((one) => one.group === group).map(numberRow),
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
    h("td", {}, one.title),
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
              num(shares[0]),
              h("span", { class: "note" }, ` (${num(a)})`),
            ),
            h(
              "td",
              { class: "n" },
              num(shares[1]),
              h("span", { class: "note" }, ` (${num(b)})`),
            ),
            h("td", { class: "n" }, signed(shares[1] - shares[0])),
          ),
        ),
      ),
    ),
  );
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

// What else is different in a pair, which is often why one of the two failed.
function whatElse({ a, b }) {
  const calls = (one) => plural(one.failed_calls, "failed call");
  return [
    a.termination !== b.termination && `${words(a.termination)} \u2192 ${words(b.termination)}`,
    a.failed_calls !== b.failed_calls && `${calls(a)} \u2192 ${num(b.failed_calls)}`,
  ].filter(Boolean);
}

// The pairs that are listed, in a sentence: how often they ended otherwise, or calls failed.
function inCommon(found) {
  const of = (test) => `${num(found.filter(test).length)} of ${num(found.length)}`;
  return [
    `${of(({ a, b }) => a.termination !== b.termination)} ended otherwise, `,
    `${of(({ a, b }) => a.failed_calls > b.failed_calls)} have fewer failed calls, `,
    `${of(({ a, b }) => a.failed_calls < b.failed_calls)} more.`,
  ].join("");
}

function pairs(data, which, title, what) {
  const found = data[which];
  const count = data[`${which}_count`];
  return h(
    "section",
    { class: "card" },
    h("h2", {}, title, " ", h("span", { class: "note" }, plural(count, "task"))),
    !found.length && h("p", { class: "note" }, `No task ${what}.`),
    found.length > 0 && h("p", {}, inCommon(found)),
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
          h("span", { class: "note why" }, whatElse(entry).join("; ")),
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
