// Find: text over all turns, filters, and SQL. The whole question is in the address, so it can be
// kept and sent.

import { get } from "../api.js";
import { empty, h } from "../dom.js";
import { kindName, lastPart, num, plural } from "../format.js";
import { go, href } from "../router.js";
import { REWARD_AND_SCORE, reward, sameScore, termination } from "./parts.js";
import { FILTERS, form } from "./find_form.js";
import { questions } from "./questions.js";
import { saved } from "./saved.js";
import { sqlPanel } from "./sql.js";

const PAGE = 50;
const NAMES = [
  "q",
  "kind",
  "termination",
  "tool_status",
  "truncated",
  "zero_advantage",
  "role",
  "sort",
  "label",
  ...FILTERS.map(([name]) => name),
];

function question(params) {
  return Object.fromEntries(
    NAMES.filter((name) => params[name]).map((name) => [name, params[name]]),
  );
}

async function load(params, signal) {
  const runs = await get("runs", {}, signal);
  const run = params.run ?? runs[0]?.id;
  if (!run) return { runs, run, kinds: [], found: null };
  const step = await get("step", { run, kind: params.kind ?? "train" }, signal).catch(
    () => ({ kinds: [] }),
  );
  const asked = question(params);
  if (params.sql !== undefined || !Object.keys(asked).length)
    return { runs, run, kinds: step.kinds, found: null };
  const offset = Number(params.offset ?? 0);
  try {
    return {
      runs,
      run,
      kinds: step.kinds,
      found: await get("find", { run, ...asked, limit: PAGE, offset }, signal),
    };
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return { runs, run, kinds: step.kinds, found: null, error: error.message };
  }
}

function draw(data, params) {
  const { run } = data;
  const inSql = params.sql !== undefined;
  const body = inSql ? sqlPanel(run, params.sql) : [form(data, params), results(data, params)];
  return {
    title: `${params.q ? `"${params.q}": find` : inSql ? "SQL" : "Find"}${run ? ` in ${lastPart(run)}` : ""}`,
    crumbs: [
      ["runs", href("runs")],
      run && [lastPart(run), href("run", { run })],
      ["find", null],
    ].filter(Boolean),
    up: run ? href("run", { run }) : href("runs"),
    keys: [
      {
        keys: ["]"],
        shown: "]",
        what: "next page of results",
        run: () => turnPage(data, params, 1),
      },
      {
        keys: ["["],
        shown: "[",
        what: "page of results before",
        run: () => turnPage(data, params, -1),
      },
    ],
    node: h(
      "div",
      { class: "page" },
      h(
        "header",
        { class: "head" },
        h("div", {}, h("h1", {}, "Find")),
        h(
          "div",
          { class: "actions" },
          data.runs.length > 1 && runPicker(data, params),
          h(
            "nav",
            { class: "tabs", "aria-label": "How to ask" },
            h(
              "a",
              {
                class: "button",
                href: href("find", { run }),
                "aria-current": inSql ? null : "page",
              },
              "Text and filters",
            ),
            h(
              "a",
              {
                class: "button",
                href: `${href("find", { run })}${run ? "&" : "?"}sql=`,
                "aria-current": inSql ? "page" : null,
              },
              "SQL",
            ),
          ),
        ),
      ),
      saved(),
      run &&
        !inSql &&
        questions(run, { more: h("a", { href: href("hacking", { run }) }, "same text in many tasks") }),
      run ? body : empty("No run here", "There is nothing to search."),
    ),
    after: () =>
      !Object.keys(question(params)).length &&
      !inSql &&
      document.getElementById("find-text")?.focus({ preventScroll: true }),
  };
}

function runPicker(data, params) {
  return h(
    "select",
    {
      "aria-label": "Run",
      "data-key": "run",
      onchange: (event) => go("find", { ...params, run: event.target.value, offset: "" }),
    },
    data.runs.map((one) => h("option", { value: one.id, selected: one.id === data.run }, one.name)),
  );
}

function turnPage(data, params, by) {
  if (!data.found) return;
  const offset = Number(params.offset ?? 0) + by * PAGE;
  if (offset >= 0 && offset < data.found.total)
    go("find", { ...params, run: data.run, offset: offset || "" });
}

function results(data, params) {
  const { found, run } = data;
  if (data.error) return h("p", { class: "card error", role: "alert" }, data.error);
  if (!found) return null;
  const offset = Number(params.offset ?? 0);
  const link = (by, text) => {
    const to = offset + by * PAGE;
    const there = to >= 0 && to < found.total;
    return h(
      there ? "a" : "span",
      {
        class: "button",
        "aria-disabled": there ? null : "true",
        href: there ? href("find", { ...params, run, offset: to || "" }) : null,
      },
      text,
    );
  };
  if (!found.hits.length)
    return h(
      "div",
      { class: "card" },
      empty(
        "Nothing found",
        "No rollout fits all of this. Take a filter away, or look in another run.",
      ),
    );
  const same = sameScore(found.hits.map((hit) => [hit.reward, hit.score]));
  return h(
    "section",
    { class: "card scroll" },
    h(
      "p",
      { class: "row" },
      h("b", {}, plural(found.total, "rollout")),
      h(
        "span",
        { class: "note" },
        `${num(offset + 1)} to ${num(offset + found.hits.length)}, in ${num(found.took_ms)} ms`,
      ),
      found.total > PAGE && h("span", { class: "stepper" }, link(-1, "\u2039"), link(1, "\u203a")),
    ),
    h(
      "table",
      { class: "hits" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["rollout", "where", same ? REWARD_AND_SCORE : "reward", !same && "score", "ended by"]
            .filter(Boolean)
            .map((name, i) => h("th", { class: i > 2 ? "wide" : null }, name)),
        ),
      ),
      h(
        "tbody",
        {},
        found.hits.map((hit) => row(hit, run, same)),
      ),
    ),
  );
}

function row(hit, run, same) {
  const to = href("rollout", {
    run,
    kind: hit.kind,
    step: hit.step,
    rollout: hit.rollout_id,
    turn: hit.turn ?? "",
  });
  const [before, match, after] = hit.snippet ?? ["", "", ""];
  return h(
    "tr",
    { "data-item": "" },
    h(
      "td",
      {},
      h(
        "a",
        { class: "strong", href: to, "data-key": `${hit.kind} ${hit.rollout_id}` },
        hit.task_id,
      ),
      (before || match || after) &&
        h("p", { class: "snippet" }, before, h("mark", {}, match), after),
    ),
    h(
      "td",
      { class: "where" },
      h(
        "a",
        { href: href("step", { run, kind: hit.kind, step: hit.step }) },
        `${kindName(hit.kind)} step ${hit.step}`,
      ),
      h(
        "div",
        { class: "note" },
        h(
          "a",
          { href: href("group", { run, kind: hit.kind, step: hit.step, group: hit.group_id }) },
          `sibling ${lastPart(hit.rollout_id)} of its group`,
        ),
      ),
    ),
    h("td", {}, reward(hit.reward)),
    !same && h("td", { class: "wide" }, num(hit.score)),
    h("td", { class: "wide" }, termination(hit.termination)),
  );
}

export default { load, draw };
