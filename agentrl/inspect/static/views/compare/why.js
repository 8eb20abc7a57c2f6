// Why two sets differ in score: the causes of failed rollouts with what each is worth, and what
// else is not the same, from the length of answers to the prompt.

import { diff } from "../../diff.js";
import { h } from "../../dom.js";
import { inSigns, num, percent, plural, signed } from "../../format.js";
import { href } from "../../router.js";
import { stepsText } from "../tasks/tasks.js";

// Characters of a prompt that stay around what differs, and of one differing piece.
const AROUND = 40;
const MOST = 240;

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

// One row a cause: rates with counts, each leading to the rollouts that failed so, and a pair of one task.
export function causeTable(data, names) {
  const { causes, explained: change, sides } = data;
  const heads = [
    ["Failed by", ""],
    [names[0], "n"],
    [names[1], "n"],
    ...(change === null ? [] : [[`worth, of ${signed(change)}`, "n"]]),
    ...(causes.some(({ pair }) => pair) ? [["example", ""]] : []),
  ];
  if (!causes.length) return h("p", {}, "No rollout missed any score.");
  const table = h(
    "table",
    { class: "tasks causes" },
    h("thead", {}, h("tr", {}, heads.map(([text, cls]) => h("th", { class: cls }, text)))),
    h("tbody", {}, causes.map((one) => causeRow(one, sides, change !== null))),
  );
  const worth = `Worth: the share failed so in ${names[0]} and solved in ${names[1]}, less the reverse; all causes sum to ${signed(change)}.`;
  return [table, change !== null && h("p", { class: "note" }, worth)];
}

// The rollouts that a count counts, found by the same comparison.
function causeAddress(sides, i, why) {
  const [own, other] = [sides[i], sides[1 - i]];
  const against = `${other.kind} ${stepsText(other.steps)}`;
  return href("find", {
    run: own.run,
    kind: own.kind,
    step_min: own.steps[0],
    step_max: own.steps[1],
    cause: why,
    against: other.run === own.run ? against : `${against} ${other.run}`,
  });
}

function causeRow({ why, counts, sizes, part, note, pair }, sides, explained) {
  const cell = (i) => {
    const text = `${num(counts[i])} of ${num(sizes[i])} (${percent(counts[i] / sizes[i])})`;
    if (!counts[i]) return text;
    const title = "These rollouts";
    return h("a", { href: causeAddress(sides, i, why), title, "data-key": `cause ${i} ${why}` }, text);
  };
  const solved = pair && pair.after > pair.before;
  return h(
    "tr",
    {},
    h("td", {}, why, note && h("div", { class: "note" }, inSigns(note))),
    h("td", { class: "n" }, cell(0)),
    h("td", { class: "n" }, cell(1)),
    explained &&
      h("td", { class: `n ${part > 0 ? "good-ink" : part < 0 ? "fail-ink" : ""}` }, part ? signed(part) : "0"),
    h(
      "td",
      {},
      pair &&
        h(
          "a",
          { href: pairAddress(sides, pair), title: "Both rollouts side by side", "data-key": `cause pair ${why}` },
          `${solved ? "failed \u2192 solved" : "solved \u2192 failed"}: ${pair.task_id}`,
        ),
    ),
  );
}

// Lengths, turns and calls; what may be chance stands behind.
export function behaviourList({ behaviour, behaviour_open: open }) {
  const item = (text) => h("li", {}, inSigns(text));
  return [
    behaviour.length > 0 && h("ul", {}, behaviour.map(item)),
    open.length > 0 && h("p", { class: "note" }, inSigns(`May be chance: ${open.join(" ")}`)),
  ];
}

// What two runs began with, each difference with both values.
export function startList({ starts }) {
  return starts.length > 0 && h(
    "ul",
    { "aria-label": "Differences at the start" },
    starts.map(({ what, a, b }) =>
      h("li", {}, `${what[0].toUpperCase()}${what.slice(1)}: A ${a || "as it is"}; B ${b || "as it is"}.`),
    ),
  );
}

// Both prompts around what differs, marked.
export function prompts({ prompts: found }) {
  if (!found) return null;
  const parts = diff(found.a, found.b);
  const side = (own, tag, name) =>
    h(
      "p",
      { class: "excerpt" },
      h("b", {}, `${name} `),
      parts
        .filter(([kind]) => kind === "same" || kind === own)
        .map(([kind, text], i, all) =>
          kind === "same" ? around(text, i === 0, i === all.length - 1) : h(tag, {}, firstOf(text)),
        ),
    );
  return h(
    "div",
    { "aria-label": "Prompts", role: "group" },
    h("h3", {}, found.task_id ? `Prompt of ${found.task_id}` : "Prompt before the question"),
    h("div", { class: "learned-lists" }, side("gone", "del", "A"), side("new", "ins", "B")),
  );
}

function around(text, first, last) {
  if (text.length <= 2 * AROUND) return text;
  const start = first ? "" : text.slice(0, AROUND).replace(/\s\S*$/, "");
  const end = last ? "" : text.slice(-AROUND).replace(/^\S*\s/, "");
  return `${start} \u2026 ${end}`;
}

function firstOf(text) {
  return text.length <= MOST ? text : `${text.slice(0, MOST)} \u2026 (${plural(text.length - MOST, "character")} more)`;
}
