// Two rollouts side by side, of one run or of two: outcome on top, then turn beside turn, with their
// texts level line by line, and why each has its reward.

import { get } from "../../api.js";
import { h, longText } from "../../dom.js";
import { kindName, lastPart, num, secondsLike } from "../../format.js";
import { href } from "../../router.js";
import { explanationCard } from "../explanation.js";
import { foldButtons, foldKeys } from "../fold.js";
import { notes, reward, termination } from "../parts.js";
import { actionText } from "../sibling_text.js";
import { MOST_CHARS, splitText } from "../split.js";
import { heading, outcomes } from "../turn.js";

// What is collapsed and expanded together.
const FOLDED = ".beside details.turn";

async function load(params, signal) {
  const { run, kind, step, rollout } = params;
  const [a, b] = await Promise.all([
    get("rollout", { run, kind, step, rollout }, signal),
    get(
      "rollout",
      {
        run: params.b_run || run,
        kind: params.b_kind || kind,
        step: params.b_step || step,
        rollout: params.b_rollout,
      },
      signal,
    ),
  ]);
  return { a: { ...a, run }, b: { ...b, run: params.b_run || run } };
}

function draw({ a, b }, params) {
  const { run } = params;
  const plain = params.as === "plain";
  const turns = [a, b].map((one) => one.rows.flatMap((row) => row.turns));
  const size = Math.max(...turns.map((list) => list.length));
  const same = a.task_id === b.task_id;
  return {
    title: `${a.task_id}: two rollouts`,
    crumbs: [
      ["runs", href("runs")],
      [lastPart(run), href("run", { run })],
      ["compare", compareAddress(a, b)],
      [a.task_id, null],
    ],
    up: compareAddress(a, b),
    keys: foldKeys(FOLDED),
    node: h(
      "div",
      { class: "page" },
      h(
        "header",
        { class: "head" },
        h(
          "div",
          {},
          h("h1", {}, same ? a.task_id : `${a.task_id} and ${b.task_id}`),
          h(
            "p",
            { class: "sub" },
            h("a", { href: href("task", { run, task: a.task_id }) }, "all steps of this task"),
          ),
        ),
        h(
          "div",
          { class: "actions" },
          size > 1 && foldButtons(FOLDED),
          h(
            "nav",
            { class: "tabs", "aria-label": "How texts are shown" },
            [
              ["", "Differences"],
              ["plain", "Plain texts"],
            ].map(([as, name]) =>
              h(
                "a",
                {
                  class: "button",
                  href: href("pair", { ...params, as }),
                  "aria-current": plain === (as === "plain") ? "page" : null,
                },
                name,
              ),
            ),
          ),
        ),
      ),
      notes([...new Set([...a.notes, ...b.notes])]),
      prompt(a, b),
      h(
        "div",
        { class: "beside" },
        outcome("A", a, b),
        outcome("B", b, a),
        Array.from({ length: size }, (_, i) =>
          beside(turns[0][i], turns[1][i], i, {
            plain,
            ended: turns.map((list) => i === list.length),
          }),
        ),
        [a, b].map((one, side) =>
          h(
            "div",
            {},
            explanationCard(one.explanation, { key: `why ${"AB"[side]}`, id: null }),
          ),
        ),
      ),
    ),
  };
}

function compareAddress(a, b) {
  return href("compare", {
    run: a.run,
    kind: a.kind,
    steps: a.step,
    b_run: b.run === a.run ? "" : b.run,
    b_kind: b.kind,
    b_steps: b.step,
  });
}

function prompt(a, b) {
  const [left, right] = [a, b].map((one) => one.rows[0]?.prompt_text ?? "");
  return h(
    "details",
    { class: "card prompt", "data-key": "prompt", open: true },
    h("summary", {}, h("h2", {}, left === right ? "Prompt" : "Prompt: they differ")),
    left === right
      ? h("pre", { class: "text" }, left)
      : actionText(right, left),
  );
}

function outcome(name, one, other) {
  const parts = [...new Set([one, other].flatMap((side) => Object.keys(side.reward_parts)))];
  const at = { run: one.run, kind: one.kind, step: one.step };
  const time = secondsLike([one.duration_s, other.duration_s]);
  const fact = (label, value) => [h("dt", {}, label), h("dd", {}, value)];
  return h(
    "section",
    { class: "outcome", "aria-label": `Rollout ${name}` },
    h(
      "header",
      {},
      h("b", {}, name),
      h(
        "a",
        {
          href: href("rollout", { ...at, rollout: one.rollout_id }),
          "data-key": `rollout ${name}`,
        },
        `${one.run === other.run ? "" : `${lastPart(one.run)}, `}${kindName(one.kind)} step ${num(one.step)}, sibling ${lastPart(one.rollout_id)}`,
      ),
    ),
    h(
      "p",
      { class: "big" },
      reward(one.score ?? one.reward),
      termination(one.termination, one.detail),
    ),
    h(
      "dl",
      { class: "facts" },
      one.score !== null && one.score !== one.reward && fact("reward", num(one.reward)),
      parts.map((part) => fact(part, num(one.reward_parts[part] ?? null))),
      fact("tokens", num(one.action_tokens)),
      fact("turns", num(actions(one))),
      fact("calls not parsed or broken", num(failed(one))),
      fact("time", time(one.duration_s)),
    ),
    graded(one),
  );
}

// What the grader said first: an answer that ran and was wrong is no failed call.
function graded(one) {
  const said = one.explanation.find((part) => part.field === "reason");
  return said ? h("p", { class: "note" }, `Graded: ${said.text.split("\n")[0]}`) : null;
}

function turnsOf(one) {
  return one.rows.flatMap((row) => row.turns);
}

function actions(one) {
  return turnsOf(one).filter((of) => of.role === "assistant").length;
}

// Calls that could not be parsed, and those that ended with a tool error.
function failed(one) {
  const all = turnsOf(one).flatMap((of) => [...of.tool_calls, ...of.tool_results]);
  return all.filter((of) => of.status !== "ok").length;
}

// One turn of each: as one article with their texts level where both said something to compare.
function beside(left, right, index, { plain, ended }) {
  const comparable =
    left && right && left.role === right.role && left.text && right.text && left.text !== right.text;
  if (plain || !comparable || left.text.length + right.text.length > MOST_CHARS)
    return [cell("A", left, index, ended[0]), cell("B", right, index, ended[1], left?.text)];
  return h(
    "details",
    {
      class: `turn both role-${left.role}`,
      open: true,
      "data-item": "",
      "data-key": `turn ${index}`,
    },
    h(
      "summary",
      {},
      [left, right].map((one, side) =>
        h("span", { class: "half" }, h("b", {}, "AB"[side]), heading(one)),
      ),
    ),
    splitText(left.text, right.text),
    h(
      "div",
      { class: "split-row" },
      [left, right].map((one) => h("div", {}, outcomes(one))),
    ),
  );
}

// The text of a turn; results that it does not have, as of a rollout that had ended, before it.
function wholeText(one) {
  const apart = one.tool_results.map((of) => of.text).filter((text) => !one.text.includes(text));
  return [...apart, one.text].filter(Boolean).join("\n");
}

function cell(name, one, index, ended, other) {
  if (!one) return h("div", {}, ended && h("p", { class: "note" }, `${name} has ended`));
  return h(
    "div",
    {},
    // As text on both sides: a call that was read in one and not in the other would look unlike.
    h(
      "details",
      { class: `turn role-${one.role}`, open: true, "data-item": "", "data-key": `turn ${name}-${index}` },
      h("summary", {}, h("b", {}, name), heading(one)),
      longText(wholeText(one)),
      outcomes(one),
    ),
    other === one.text && h("p", { class: "note" }, "The same text."),
  );
}

export default { load, draw };
