// One rollout as it was lived: turns, tool calls and what they answered, rewards, and the same
// task at other times of the training.

import { exportAddress, get, has, isExport } from "../api.js";
import { h, longText } from "../dom.js";
import { kindName, lastPart, num, plural, seconds, short, signed } from "../format.js";
import { href } from "../router.js";
import { WHY, explanationCard } from "./explanation.js";
import { foldButtons, foldKeys } from "./fold.js";
import { labelCard } from "./labels/labels.js";
import { nextTrouble, outline } from "./outline.js";
import { REWARD_AND_SCORE, notes, reward, sameScore, termination } from "./parts.js";
import { imagesIn, textWithImages } from "./pictures.js";
import { requestCard } from "./requests.js";
import { taskSlider } from "./slider.js";
import { unified } from "./sibling_text.js";
import { turn } from "./turn.js";

// What is collapsed and expanded together.
const FOLDED = ".turns details.turn";

async function load(params, signal) {
  const { run, kind, step, rollout } = params;
  const data = await get("rollout", { run, kind, step, rollout }, signal);
  return isExport ? withoutMissing(data, run, kind, step) : data;
}

// An exported page links only to what it holds.
function withoutMissing(data, run, kind, step) {
  const there = (rollout) => has("rollout", { run, kind, step, rollout });
  return {
    ...data,
    siblings: data.siblings.filter(there),
    sibling_rewards: data.sibling_rewards.filter((_, i) => there(data.siblings[i])),
    sibling_scores: data.sibling_scores.filter((_, i) => there(data.siblings[i])),
    same_task: data.same_task.filter((one) =>
      has("rollout", { run, kind: one.kind, step: one.step, rollout: one.rollout_id }),
    ),
    previous: there(data.previous) ? data.previous : null,
    next: there(data.next) ? data.next : null,
  };
}

function draw(data, params) {
  const { run, kind, step } = params;
  const at = (rollout) => href("rollout", { run, kind, step, rollout });
  const up = href("group", { run, kind, step, group: data.group_id });
  const here = data.siblings.indexOf(params.rollout);
  const jump = (to) => to && (location.hash = at(to));
  return {
    title: `${params.rollout}, ${kindName(kind)} step ${step} of ${lastPart(run)}`,
    crumbs: [
      ["runs", href("runs")],
      [lastPart(run), href("run", { run })],
      [`${kindName(kind)} step ${step}`, href("step", { run, kind, step })],
      [data.task_id, up],
      [`sibling ${lastPart(params.rollout)}`, null],
    ],
    up,
    keys: [
      {
        keys: ["ArrowLeft", "["],
        shown: "\u2190 or [",
        what: "the sibling before",
        run: () => jump(data.siblings[here - 1]),
      },
      {
        keys: ["ArrowRight", "]"],
        shown: "\u2192 or ]",
        what: "the sibling after",
        run: () => jump(data.siblings[here + 1]),
      },
      {
        keys: ["p"],
        shown: "p",
        what: "the rollout stored before",
        run: () => jump(data.previous),
      },
      { keys: ["n"], shown: "n", what: "the rollout stored after", run: () => jump(data.next) },
      {
        keys: ["t"],
        shown: "t",
        what: "tokens",
        run: () => (location.hash = tokensAddress(params, 0)),
      },
      { keys: ["f"], shown: "f", what: "the next turn with a failure", run: nextTrouble },
      ...foldKeys(FOLDED),
    ],
    node: h(
      "div",
      { class: "page" },
      header(data, params, up),
      notes(data.notes),
      h(
        "div",
        { class: "reading" },
        h(
          "div",
          { class: "turns" },
          requestCard(data.requests, (row, turn) => `turn-${turnId({ row_index: row }, turn, data.rows.length > 1)}`),
          data.rows.map((row) => rowOf(row, data, params)),
          explanations(data),
          data.patch &&
            h(
              "details",
              { class: "card", "data-key": "patch", "data-item": "" },
              h("summary", {}, h("h2", {}, "Final patch")),
              unified(data.patch),
            ),
        ),
        side(data, params, at),
      ),
    ),
    after: () =>
      params.turn &&
      document.getElementById(`turn-${params.turn}`)?.scrollIntoView({ block: "start" }),
  };
}

function tokensAddress(params, row) {
  const { run, kind, step, rollout } = params;
  return href("tokens", { run, kind, step, rollout, row });
}

function header(data, params, up) {
  return h(
    "header",
    { class: "head" },
    h(
      "div",
      {},
      h("h1", {}, data.task_id, " ", termination(data.termination, data.detail)),
      h(
        "p",
        { class: "sub" },
        h("span", { class: "mono" }, params.rollout),
        data.detail && h("span", {}, data.detail.split("\n")[0]),
      ),
      h("p", { class: "outcome-line" }, data.outcome),
    ),
    h(
      "div",
      { class: "actions" },
      data.rows.some((row) => row.turns.length > 1) && foldButtons(FOLDED),
      !isExport && h("a", { class: "button", href: up, "data-key": "group" }, "Group"),
      h("a", { class: "button", href: tokensAddress(params, 0), "data-key": "tokens" }, "Tokens"),
      !isExport && exports(params),
    ),
  );
}

function exports(params) {
  const { run, kind, step, rollout } = params;
  return h(
    "details",
    { class: "menu", "data-key": "export" },
    h("summary", { class: "button" }, "Export"),
    h(
      "ul",
      {},
      [
        ["jsonl", "JSONL"],
        ["parquet", "Parquet"],
        ["html", "HTML, one file to share"],
        ["atif", "ATIF"],
      ].map(([format, name]) =>
        h(
          "li",
          {},
          h(
            "a",
            { href: exportAddress({ run, kind, step, rollout, format }), download: true },
            name,
          ),
        ),
      ),
    ),
  );
}

// The name of a turn in addresses and in the page.
function turnId(row, i, many) {
  return many ? `${row.row_index}-${i}` : String(i);
}

function rowOf(row, data, params) {
  const many = data.rows.length > 1;
  return h(
    "section",
    { class: "row-block", "aria-label": many ? `Row ${row.row_index}` : "Turns" },
    many &&
      h(
        "h2",
        { class: "row-title" },
        `Row ${row.row_index} `,
        h(
          "span",
          { class: "note" },
          row.reason || "the history was rewritten before it, so it is trained apart",
        ),
      ),
    h(
      "details",
      {
        class: "turn role-prompt",
        "data-key": `prompt ${row.row_index}`,
        "data-item": "",
        open: true,
      },
      h(
        "summary",
        {},
        h("span", { class: "role" }, "prompt"),
        h("span", { class: "note" }, plural(row.prompt_tokens, "token")),
      ),
      row.prompt_text
        ? textWithImages(params.run, imagesIn(row, 0, row.prompt_tokens))(row.prompt_text)
        : h("p", { class: "note" }, "Its text was not stored; see its tokens."),
    ),
    row.turns.map((one, i) => {
      const [from, to] = [one.start, one.end].map((at) => row.prompt_tokens + at);
      return turn(one, turnId(row, i, many), textWithImages(params.run, imagesIn(row, from, to)));
    }),
    graded(row, data),
    data.detail?.includes("\n") &&
      h(
        "details",
        { class: "turn", "data-key": "detail", "data-item": "" },
        h("summary", {}, h("span", { class: "role fail-ink" }, "why it ended")),
        longText(data.detail),
      ),
    h(
      "p",
      { class: "note end" },
      plural(row.n_tokens, "token"),
      " ",
      h("a", { href: tokensAddress(params, row.row_index) }, "see each of them"),
      !row.has_tokens && " (the trainer recorded none of them)",
    ),
  );
}

// The call that ends a rollout has no result; what the grader said stands there.
function graded(row, data) {
  const reason = data.explanation.find((part) => part.field === "reason");
  const ends = row === data.rows.at(-1) && row.turns.at(-1)?.tool_calls.length;
  return ends && reason
    ? h("p", { class: "note" }, `The rollout ended with this call, so no result went to the model. ${reason.paid ? "Graded" : "Graded by the environment, which is not paid"}: ${reason.text}`)
    : null;
}

// Reasons of who paid, and those of an environment whose verdict is not paid.
function explanations(data) {
  const [paid, unpaid] = [true, false].map((of) => data.explanation.filter((part) => part.paid === of));
  return [
    explanationCard(paid),
    explanationCard(unpaid, {
      key: "score explanation",
      title: whyTitle({ ...data, explanation: unpaid }),
      id: paid.length ? "why-score" : "why",
      note: `the environment's verdict, which is not paid (weight 0); never shown to the model`,
    }),
  ];
}

// Of the first reason: an environment's that is not paid explains the score.
function whyTitle({ explanation, score }) {
  if (explanation.some((part) => part.paid)) return WHY;
  return score === null ? "Why the environment's reward" : "Why this score";
}

function weighed({ name, value, weight }) {
  return [weight === null ? name : `${name} (weight\u00a0${short(weight)})`, num(value)];
}

function side(data, params, at) {
  const facts = [
    [sameScore([[data.reward, data.score]]) ? REWARD_AND_SCORE : "reward", reward(data.reward)],
    ...data.payment.map(weighed),
    data.score !== data.reward && ["score", num(data.score)],
    ["advantage", data.advantage === null ? "not in a batch" : signed(data.advantage)],
    data.version_lag > 0 && ["policy lag", plural(data.version_lag, "step")],
    ["time", seconds(data.duration_s)],
    data.temperature !== undefined && ["temperature", num(data.temperature)],
  ].filter(Boolean);
  const logged = Object.entries(data.extra_logs ?? {});
  const many = data.rows.length > 1;
  const turns = data.rows.flatMap((row) =>
    row.turns.map((one, i) => ({ one, id: turnId(row, i, many) })),
  );
  const scored = data.sibling_scores.some((of, i) => of !== null && of !== data.sibling_rewards[i]);
  return h(
    "aside",
    { class: "side" },
    h(
      "section",
      { class: "card" },
      h("h2", {}, "Outcome"),
      h(
        "dl",
        { class: "facts" },
        facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
      ),
      logged.length > 0 && [
        h(
          "details",
          { class: "raw", "data-key": "logged" },
          h("summary", { class: "note" }, `${plural(logged.length, "number")} logged by the environment`),
          h(
            "dl",
            { class: "facts" },
            logged.map(([name, value]) => [h("dt", {}, name), h("dd", {}, num(value))]),
          ),
        ),
      ],
    ),
    outline(turns, { explained: data.explanation.length > 0 && whyTitle(data) }),
    data.siblings.length > 1 &&
      h(
        "section",
        { class: "card" },
        h("h2", {}, "Siblings", h("span", { class: "note" }, " highest reward first, equal ones by score and tests")),
        h(
          "ul",
          { class: "chips" },
          data.siblings.map((one, i) =>
            h(
              "li",
              {},
              h(
                "a",
                {
                  class: "chip",
                  href: at(one),
                  title: one,
                  "aria-current": one === params.rollout ? "true" : null,
                  "data-key": `sibling ${one}`,
                },
                lastPart(one),
                h("small", {}, ` ${num(data.sibling_rewards[i])}${scored ? `, score ${num(data.sibling_scores[i])}` : ""}`),
              ),
            ),
          ),
        ),
      ),
    labelCard(data, params),
    taskSlider(data, params),
  );
}

export default { load, draw };
