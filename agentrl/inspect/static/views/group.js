// The siblings of one group side by side, the first place where they differ, and what differs.

import { get } from "../api.js";
import { h, longText } from "../dom.js";
import { kindName, lastPart, num, plural, secondsLike, withoutFence, words } from "../format.js";
import { go, href } from "../router.js";
import { WHY, explanationCard, explanationTexts } from "./explanation.js";
import { foldButtons, foldKeys } from "./fold.js";
import { around, notes, reward, termination } from "./parts.js";
import { textWithImages } from "./pictures.js";
import { actionText, patchText } from "./sibling_text.js";

// What is collapsed and expanded together.
const FOLDED = ".siblings .cell > details";

async function load(params, signal) {
  const { run, kind, step, group } = params;
  return get("group", { run, kind, step, group }, signal);
}

function draw(data, params) {
  const { run, kind, step } = params;
  const up = href("step", { run, kind, step });
  const reference = sharedReference(data);
  const base = data.siblings.find((one) => one.rollout_id === params.base) ?? null;
  return {
    title: `${data.task_id}, ${kindName(kind)} step ${step} of ${lastPart(run)}`,
    crumbs: [
      ["runs", href("runs")],
      [lastPart(run), href("run", { run })],
      [`${kindName(kind)} step ${step}`, up],
      [data.task_id, null],
    ],
    up,
    keys: [
      {
        keys: ["b"],
        shown: "b",
        what: "compare all with the focused sibling, or stop comparing",
        run: () => compareFocused(params, base),
      },
      ...foldKeys(FOLDED),
    ],
    node: h(
      "div",
      { class: "page wide" },
      h(
        "header",
        { class: "head" },
        h("div", {}, h("h1", {}, data.task_id), h("p", { class: "sub" }, summary(data))),
        h(
          "div",
          { class: "actions" },
          h(
            "a",
            { class: "button", href: href("task", { run, task: data.task_id }), "data-key": "task" },
            "All steps of this task",
          ),
          data.siblings.some((one) => one.actions.length > 1) && foldButtons(FOLDED),
          firstPair(data, params),
          otherSteps(data, params),
          base &&
            h(
              "a",
              { class: "button", href: href("group", { ...params, base: null }) },
              "Stop comparing",
            ),
        ),
      ),
      notes(data.notes),
      data.untrained && h("p", { class: "card warn-ink" }, "All rewards are equal, so nothing was trained."),
      data.siblings.length > 1 && outcomes(data),
      h(
        "details",
        { class: "card prompt", "data-key": "prompt", open: matchMedia("(min-width: 701px)").matches },
        h("summary", {}, h("h2", {}, "Prompt")),
        textWithImages(run, data.prompt_images)(data.prompt_text),
      ),
      reference && explanationCard([reference], { key: "reference", title: "Reference answer" }),
      columns(data, params, base, reference),
    ),
  };
}

// The reference answer where all siblings have the same one.
function sharedReference(data) {
  const all = data.siblings.map((one) =>
    one.explanation.find((part) => part.field === "reference"),
  );
  const known = all.filter(Boolean);
  return known.length && known.every((part) => part.text === known[0].text) ? known[0] : null;
}

function pairAddress(params, one, other) {
  const { run, kind, step } = params;
  return href("pair", { run, kind, step, rollout: one.rollout_id, b_rollout: other.rollout_id });
}

function firstPair(data, params) {
  if (!data.pair) return null;
  const [one, other] = [data.pair.best, data.pair.other].map((id) => ({ rollout_id: id }));
  return h(
    "a",
    {
      class: "button",
      href: pairAddress(params, one, other),
      title: data.pair.why,
      "data-key": "best against failure",
    },
    `${data.pair.name} side by side`,
  );
}

// What the siblings ended with, each outcome once; a number leads to the column of that sibling.
function outcomes(data) {
  const jump = (id) => {
    const one = data.siblings.find((of) => of.rollout_id === id);
    const cell = document.querySelector(`[data-sibling="${CSS.escape(one.same_as ?? id)}"]`);
    cell?.scrollIntoView({ block: "nearest" });
    cell?.querySelector("a")?.focus({ preventScroll: true });
  };
  const wide = matchMedia("(min-width: 721px)").matches;
  const scored = data.outcomes.some((one) => one.score !== null && one.score !== one.reward);
  const tested = data.siblings.some((one) => one.explanation.some((part) => part.field === "tests"));
  const graded = data.env_paid
    ? "how it was graded"
    : `${tested ? "tests" : "why this score"} (not paid)`;
  const heads = ["reward", scored && "score", "last answer", graded, "siblings"].filter(Boolean);
  return h(
    "section",
    { class: "card outcomes", "aria-label": "Outcomes" },
    h("h2", {}, "Outcomes ", h("span", { class: "note" }, `${plural(data.outcomes.length, "different last answer")} of ${plural(data.siblings.length, "sibling")}`)),
    h(
      "table",
      { class: "tasks" },
      h("thead", {}, h("tr", {}, heads.map((name) => h("th", { class: name === graded ? "wide" : "" }, name)))),
      h(
        "tbody",
        {},
        data.outcomes.map((one) =>
          h(
            "tr",
            { "data-item": "" },
            h("td", {}, reward(one.reward)),
            scored && h("td", {}, outcomeScore(one)),
            h("td", { class: "mono", title: one.text }, h("span", { class: "note" }, `${num(one.rollouts.length)}\u00d7 `), oneLine(one.text, wide ? 200 : 80)),
            h("td", { class: "note wide", title: one.said }, one.said ? oneLine(one.said, 240) : words(one.termination)),
            h(
              "td",
              {},
              one.rollouts.map((id) =>
                h("button", { class: "quiet", title: "Go to this sibling", onclick: () => jump(id) }, lastPart(id)),
              ),
            ),
          ),
        ),
      ),
    ),
  );
}

function outcomeScore({ score, paid_wrong: wrong, right_unpaid: unpaid }) {
  if (unpaid) {
    const title = "Right by the score, and paid like those that are wrong";
    return h("b", { class: "warn-ink", title }, num(score), " right, not paid");
  }
  const title = "Paid like the best of its siblings, and wrong by the score";
  return wrong ? h("b", { class: "fail-ink", title }, num(score), " paid, wrong") : num(score);
}

function oneLine(text, most) {
  const line = withoutFence(text).replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most)}\u2026` : line || "(nothing)";
}

function compareFocused(params, base) {
  const held = document.activeElement?.closest("[data-sibling]")?.dataset.sibling;
  go("group", {
    ...params,
    base: base ? null : (held ?? document.querySelector("[data-sibling]")?.dataset.sibling),
  });
}

function summary(data) {
  const known = data.siblings.map((one) => one.reward).filter((value) => value !== null);
  const best = Math.max(...known);
  return [
    h("span", {}, plural(data.siblings.length, "sibling")),
    known.length > 0 && h("span", {}, `rewards ${num(Math.min(...known))} to ${num(best)}`),
  ];
}

function otherSteps(data, params) {
  if (!data.other_steps.length) return null;
  const box = h(
    "select",
    {
      "aria-label": "The same task in another step",
      "data-key": "other",
      onchange: () => {
        const one = data.other_steps[box.selectedIndex - 1];
        if (one)
          go("group", { run: params.run, kind: params.kind, step: one.step, group: one.group_id });
      },
    },
    h("option", {}, "Same task in step \u2026"),
    data.other_steps.map((one) => h("option", {}, `step ${one.step}`)),
  );
  return box;
}

// One grid: a column for each sibling, a row for the head, for each turn, for the patches. Rows
// line up, so that what was written at the same time is seen side by side; siblings that do not fit
// beside the others stand below them.
function columns(data, params, base, reference) {
  const turns = Math.max(0, ...data.siblings.map((one) => one.actions.length));
  const patches = data.siblings.some((one) => one.patch);
  const without = reference ? ["reference"] : [];
  const reasons = data.siblings.map((one) =>
    one.explanation.filter((part) => !without.includes(part.field)),
  );
  const explained = reasons.some((parts) => parts.length);
  const size = Math.max(...data.siblings.map((one) => Math.abs(one.advantage ?? 0)), 1e-9);
  // What one sibling has, all show: else their facts would not line up.
  const shared = {
    size,
    score: data.siblings.some((one) => one.score !== null && one.score !== one.reward),
    parts: [...new Set(data.siblings.flatMap((one) => Object.keys(one.reward_parts ?? {})))],
    names: data.part_names,
    time: secondsLike(data.siblings.map((one) => one.duration_s)),
  };
  const rows = 1 + turns + Number(patches) + Number(explained);
  return h(
    "div",
    { class: "siblings", role: "region", "aria-label": "Siblings side by side" },
    data.siblings.map((one, column) => one.same_as === null &&
      h(
        "div",
        { class: "column", vars: { "--rows": rows } },
        sibling(one, params, shared, base, data.siblings.filter((of) => of.same_as === one.rollout_id)),
        turnCells(one, base, textWithImages(params.run, one.images)),
        Array.from({ length: turns - one.actions.length }, () =>
          h("div", { class: "cell turn over" }),
        ),
        patches &&
          h("section", { class: "cell patch" }, h("h3", {}, "Patch"), patchText(one, base)),
        explained && whyCell(reasons[column], one, data.env_paid ? WHY : "Why this score (not paid)"),
      ),
    ),
  );
}

function sibling(one, params, shared, base, alike) {
  const { run, kind, step } = params;
  const isBase = one === base;
  return h(
    "article",
    {
      class: `cell sibling${isBase ? " base" : ""}`,
      "data-item": "",
      "data-sibling": one.rollout_id,
    },
    h(
      "header",
      {},
      h(
        "a",
        {
          class: "strong",
          href: href("rollout", { run, kind, step, rollout: one.rollout_id }),
          title: one.rollout_id,
          "data-key": one.rollout_id,
        },
        `Sibling ${one.rollout_id.split("/").at(-1)}`,
      ),
      h(
        "a",
        {
          href: href("group", { ...params, base: isBase ? null : one.rollout_id }),
          title: "Show in every other sibling how it differs from this one (b)",
        },
        isBase ? "compared with" : "compare others with it",
      ),
      base &&
        !isBase &&
        h(
          "a",
          {
            href: pairAddress(params, base, one),
            title: "Both rollouts beside each other, line by line",
          },
          "side by side",
        ),
    ),
    alike.length > 0 &&
      h(
        "p",
        { class: "note" },
        "the same, word by word: ",
        alike.map((of) => [
          h("a", { href: href("rollout", { run, kind, step, rollout: of.rollout_id }) }, `sibling ${lastPart(of.rollout_id)}`),
          " ",
        ]),
      ),
    h("p", { class: "big" }, h("span", {}, h("span", { class: "note" }, "reward "), reward(one.reward)), termination(one.termination, one.detail)),
    h(
      "dl",
      { class: "facts" },
      shared.score && fact("score", num(one.score)),
      shared.parts.map((name) => fact((shared.names[name] ?? name).replace("(weight ", "(weight\u00a0"), num(one.reward_parts?.[name] ?? null))),
      fact("advantage", around(one.advantage, shared.size), "Above 0: made likelier; below: less"),
      fact("tokens", num(one.action_tokens), "Sampled by the policy"),
      fact("turns", num(one.turns)),
      fact("time", shared.time(one.duration_s)),
    ),
    one.detail && detailOf(one.detail, one.rollout_id),
  );
}

// The first line says what happened; a stack below it is there for who wants it.
function detailOf(text, key) {
  const [first, ...rest] = text.split("\n");
  if (!rest.length) return h("p", { class: "note detail" }, first);
  return h(
    "details",
    { class: "note detail", "data-key": `detail ${key}` },
    h("summary", {}, first),
    longText(rest.join("\n")),
  );
}

function fact(name, value, what) {
  return [h("dt", { title: what }, name), h("dd", {}, value)];
}

function turnCells(one, base, shown) {
  const against = (i) => (base && base !== one ? (base.actions[i]?.text ?? "") : null);
  return one.actions.map((action, i) =>
    h(
      "section",
      { class: "cell turn" },
      h(
        "details",
        { open: true, "data-key": `turn ${one.rollout_id} ${action.turn}` },
        h("summary", {}, h("h3", {}, `Turn ${i + 1} of ${one.turns}`)),
        actionParts(action, against(i), shown),
      ),
    ),
  );
}

function actionParts(action, against, shown) {
  return [
    actionText(action.text, against),
    action.tool_calls.map((call) =>
      h(
        "p",
        { class: `call-line ${call.status === "ok" ? "" : "fail-ink"}` },
        "call ",
        h("span", { class: "mono" }, call.name || "(no name)"),
        call.status !== "ok" && ` ${words(call.status)}`,
      ),
    ),
    action.answers.map((one) => answer(one, shown)),
  ];
}

// What a tool or the environment gave back before the next turn.
function answer(one, shown) {
  const failed = one.status && one.status !== "ok";
  return h(
    "div",
    { class: `reply role-${one.role}${failed ? " broken" : ""}` },
    h(
      "p",
      {},
      h("span", { class: "role" }, one.name || one.role),
      failed && h("span", { class: "fail-ink" }, ` ${words(one.status)}`),
    ),
    shown(one.text, { last: false, show: (text) => longText(text, { first: 400, last: 150 }) }),
  );
}

function whyCell(parts, one, title) {
  return h(
    "section",
    { class: "cell why" },
    parts.length > 0 &&
      h(
        "details",
        { open: true, "data-key": `why ${one.rollout_id}` },
        h("summary", {}, h("h3", {}, title)),
        explanationTexts(parts),
      ),
  );
}

export default { load, draw };
