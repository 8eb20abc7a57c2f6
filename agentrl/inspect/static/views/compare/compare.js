// Two sets of rollouts side by side: what differs in reward, endings, length and tools, and the
// same task failed in one and solved in the other.

import { get } from "../../api.js";
import { h, longText } from "../../dom.js";
import { inSigns, kindName, lastPart, num, percent, plural, points, signed, withoutFence } from "../../format.js";
import { href } from "../../router.js";
import { endingMeaning, notes, termination } from "../parts.js";
import { byLabel } from "../tasks/by_label.js";
import { changeLevel, changeWords, intervalText } from "../tasks/change_text.js";
import { stepsName } from "../tasks/score_cell.js";
import { sideForm } from "./side_form.js";
import { behaviourList, causeTable, pairAddress, prompts, startList } from "./why.js";

const ASKED = ["kind", "steps", "b_run", "b_kind", "b_steps"];
const WHAT = {
  raised: "The grader says so, in why a rollout has its reward.",
  open_blocks: "The turn was cut before the end of its block of code; what stands there was read.",
  parse_errors: "The model wrote a call that could not be read, so nothing ran.",
  tool_errors: "A tool ran and came back with an error.",
};
const FIRST_SETTINGS = 3;
const NOT_SET = "not set";
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
      summary(data),
      why(data),
      sideForm(runs, data, params),
      data.common_tasks > 0 && h(
        "div",
        { class: "pair even" },
        pairs(data, "solved", "Only B solves", "failed in A, solved in B"),
        pairs(data, "lost", "Only A solves", "solved in A, failed in B"),
      ),
      byLabel(data, { run, kind: a.kind }),
      numbers(data, names),
      endings(data, names),
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

// Which is better, and how far each came itself: verdict, figure and disclaimer in one line.
function summary(data) {
  const { verdict, better, text } = data.headline;
  const { title } = data.numbers[0];
  return h(
    "section",
    { class: "card learned-sum", "aria-label": "Change of the score" },
    h("p", { class: "big" }, h("b", { class: better ? "good-ink" : "" }, verdict), ` ${inSigns(text)}`),
    data.own_changes.map((line) => h("p", {}, inSigns(line))),
    !data.common_tasks && sameTasks(data.sides),
    h(
      "p",
      { class: "note" },
      "Mean score by task; [95 % interval], paired by task.",
      title !== "score" && ` Here ${title}: one number with these names.`,
    ),
  );
}

// Of two sets that share no task: evaluations of both that do.
function sameTasks([a, b]) {
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
  return evaluations.length > 0 && h(
    "p",
    {},
    "The same tasks before and after: ",
    evaluations.map((one) =>
      h("a", { class: "button", href: to(one), "data-key": `compare ${one[0]}` }, kindName(one[0])),
    ),
  );
}

function why(data) {
  const shared = data.shared_tasks ? ` On the ${plural(data.shared_tasks, "shared task")}.` : "";
  return h(
    "section",
    { class: "card", "aria-label": "Why" },
    h(
      "h2",
      {},
      data.explained === null ? "Why rollouts failed" : `Why B \u2212 A is ${signed(data.explained)}`,
      " ",
      h("span", { class: "note" }, `Each failed rollout counts once; a count finds exactly these.${shared}`),
    ),
    h(
      "div",
      { class: "learned-lists why" },
      h("div", {}, causeTable(data, ["A", "B"])),
      h(
        "div",
        {},
        h("h3", {}, "What else differs"),
        behaviourList(data),
        startList(data),
        config(data),
        data.rewards_differ && h("p", { class: "warn-ink" }, data.rewards_differ),
      ),
    ),
    prompts(data),
  );
}

function numbers(data, names) {
  const shown = data.numbers.filter((one) => !one.same_as);
  const groups = [...new Set(shown.map((one) => one.group))];
  const heads = [
    ["", ""],
    [sideHead("A", names[0]), "n"],
    [sideHead("B", names[1]), "n"],
    ["B \u2212 A, 95 % by task", "n"],
  ];
  return h(
    "section",
    { class: "card scroll" },
    h("h2", {}, "Numbers of a rollout"),
    h(
      "p",
      { class: "note" },
      data.common_tasks
        ? `Mean over the ${plural(data.common_tasks, "task")} that both tried, \u00b1 std over their rollouts.`
        : "Mean \u00b1 std over all rollouts of either side.",
    ),
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
          h("tr", {}, h("th", { colspan: 4, scope: "rowgroup" }, GROUPS[group] ?? group)),
          shown.filter((one) => one.group === group).map((one) => numberRow(one, data)),
        ),
      ),
    ),
  );
}

// On a narrow screen the letter alone: what it stands for is said at the top of the page.
function sideHead(letter, name) {
  return [letter, h("span", { class: "wide" }, `: ${name}`)];
}

function numberRow(one, data) {
  const paired = one.paired;
  // More reward is better; a longer rollout or more calls are neither good nor bad.
  const judged = one.group === "" || one.group === "part of the reward";
  const level = judged ? changeLevel(paired) : "";
  const sure = paired && paired.low !== null && (paired.low > 0 || paired.high < 0);
  return h(
    "tr",
    { "data-item": "" },
    h("td", { title: WHAT[one.name] }, one.title),
    [one.a, one.b].map((value, i) => h("td", { class: "n" }, cellOf(value, one.paid[i]))),
    h(
      "td",
      { class: `n ${level ? `${level}-ink` : ""}` },
      paired
        ? h(sure ? "b" : "span", { title: changeWords(paired) }, intervalText(paired))
        : h("span", { class: "note" }, data.rewards_differ && one.name === "reward" ? "not comparable" : num(null)),
    ),
  );
}

// A part that a run does not pay says so: it may be measured all the same.
function cellOf(value, paid) {
  if (paid !== false) return spread(value);
  const note = h("span", { class: "note" }, "not paid");
  return value && value.mean !== null ? [spread(value), " ", note] : note;
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
            h("td", {}, termination(name), h("span", { class: "note wide" }, ` ${endingMeaning(name)}`)),
            h(
              "td",
              { class: "n" },
              percent(shares[0]),
              h("span", { class: "note" }, ` (${num(a)})`),
            ),
            h(
              "td",
              { class: "n" },
              percent(shares[1]),
              h("span", { class: "note" }, ` (${num(b)})`),
            ),
            h("td", { class: "n" }, points(shares[1] - shares[0])),
          ),
        ),
      ),
    ),
  );
}

// A named section that one run lacks is one difference, as `reward.models.rm: A set, B not set`.
function settingText({ key, a, b }) {
  const section = key.split(".").slice(0, 3).join(".");
  if (section === key || ![a, b].includes(NOT_SET)) return `${key}: A ${a}, B ${b}`;
  const [left, right] = [a, b].map((value) => (value === NOT_SET ? NOT_SET : "set"));
  return `${section}: A ${left}, B ${right}`;
}

// The first are those that decide most; what is told above is not told twice.
function config(data) {
  if (!data.config.length) return null;
  const told = new Set(data.starts.flatMap(({ keys }) => keys));
  const others = data.config.filter(({ key, a, b }) => !told.has(key) && ![a, b].includes("{}"));
  const said = [...new Set(others.map(settingText))];
  const more = Math.max(0, said.length - FIRST_SETTINGS);
  return h(
    "details",
    { class: "settings", "data-key": "config" },
    h(
      "summary",
      {},
      `${plural(data.config.length, "setting")} ${data.config.length === 1 ? "differs" : "differ"}: `,
      h("span", { class: "note" }, `${said.slice(0, FIRST_SETTINGS).join("; ")}${more ? "; and more" : ""}`),
    ),
    h(
      "table",
      { class: "tasks" },
      h("thead", {}, h("tr", {}, ["setting", "A", "B"].map((name) => h("th", {}, name)))),
      h(
        "tbody",
        {},
        data.config.map(({ key, a, b }) =>
          h("tr", {}, h("td", { class: "mono" }, key), h("td", {}, a), h("td", {}, b)),
        ),
      ),
    ),
  );
}

// Why the pairs of one direction differ: each is counted once, so that they sum to all.
function reasons(data, which) {
  const found = data[`${which}_why`];
  const counted = found.reduce((sum, one) => sum + one.tasks, 0);
  const all = data[`${which}_count`];
  const loser = which === "solved" ? "A" : "B";
  const of = counted < all ? `Of the ${num(counted)} of ${num(all)} that moved most` : `Of ${num(all)}`;
  return h(
    "p",
    {},
    `${of}, why ${loser} failed: ${found.map(({ why, tasks }) => `${num(tasks)}: ${why}`).join("; ")}.`,
  );
}

// What both of one pair had graded last, below what the task asks.
function example(pair) {
  return [
    h("p", { class: "note" }, `Example: ${pair.task_id}`),
    h("div", { class: "question", "aria-label": "Question of the task" }, longText(pair.question)),
    h(
      "div",
      { class: "pair even" },
      ["a", "b"].map((side) =>
        h(
          "div",
          {},
          h("p", {}, h("b", {}, side.toUpperCase()), ` score ${num(pair[side].score ?? pair[side].reward)}`, pair[side].said && `: ${pair[side].said}`),
          h("p", { class: "note" }, `last answer, turn ${num(pair[side].turn)} of ${num(pair[side].turns)}`),
          longText(withoutFence(pair[side].text)),
        ),
      ),
    ),
  ];
}

function pairs(data, which, title, what) {
  const found = data[which];
  const count = data[`${which}_count`];
  return h(
    "section",
    { class: "card" },
    h("h2", {}, title, " ", h("span", { class: "note" }, plural(count, "task"))),
    !found.length && h("p", { class: "note" }, `No task ${what}.`),
    found.length > 0 && reasons(data, which),
    found.length > 0 && example(found[data[`${which}_example`]]),
    count > found.length &&
      h("p", { class: "note" }, `Below the ${found.length} of ${num(count)} that moved most.`),
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
          h("span", { class: "note why", title: entry.said }, entry.why),
          h("span", { class: "note" }, `A ${num(entry.before)}, B ${num(entry.after)}`),
        ),
      ),
    ),
  );
}

export default { load, draw };
