// SQL over the run's own files. The server only reads, and says what it does not allow.

import { get } from "../api.js";
import { h } from "../dom.js";
import { num, plural } from "../format.js";
import { href, replace } from "../router.js";

const EXAMPLES = [
  [
    "Hardest tasks",
    "SELECT task_id, count(*) AS rollouts, avg(reward) AS reward\nFROM trajectories WHERE kind = 'train'\nGROUP BY task_id ORDER BY reward LIMIT 20",
  ],
  [
    "Calls by outcome",
    "SELECT name, status, count(*) AS calls, avg(duration_s) AS seconds\nFROM calls GROUP BY name, status ORDER BY calls DESC",
  ],
  [
    "How rollouts end",
    "SELECT step, termination, count(*) AS rollouts\nFROM trajectories GROUP BY step, termination ORDER BY step",
  ],
  ["All columns", "SELECT table_name, column_name, data_type FROM information_schema.columns"],
];

export function sqlPanel(run, given) {
  const box = h("textarea", {
    class: "sql",
    spellcheck: "false",
    "aria-label": "SQL",
    "data-key": "sql",
    placeholder: "SELECT ... FROM trajectories | turns | calls | tokens | metrics",
  });
  box.value = given || EXAMPLES[0][1];
  const out = h("div", { role: "status" });
  const ask = async () => {
    replace("find", { run, sql: box.value });
    document.dispatchEvent(new Event("asked"));
    out.replaceChildren(h("p", { class: "note" }, "Running the query"));
    try {
      out.replaceChildren(answer(await get("sql", { run, q: box.value }), run));
    } catch (error) {
      out.replaceChildren(h("p", { class: "error" }, error.message));
    }
  };
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask();
  });
  if (given) ask();
  return [
    h(
      "section",
      { class: "card" },
      box,
      h(
        "p",
        { class: "row" },
        h("button", { class: "primary", onclick: ask }, "Ask"),
        h("span", { class: "note" }, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter")),
        EXAMPLES.map(([name, query]) =>
          h(
            "button",
            {
              class: "quiet",
              onclick: () => {
                box.value = query;
                ask();
              },
            },
            name,
          ),
        ),
      ),
    ),
    out,
  ];
}

function answer(data, run) {
  const at = (name) => data.columns.indexOf(name);
  const numeric = data.columns.map((_, i) => data.rows.some((row) => typeof row[i] === "number"));
  const cell = (value, column, row) => {
    return h(
      "td",
      { class: numeric[column] ? "n" : "" },
      (column === at("rollout_id") && linked(data, row, run, value)) || shown(value),
    );
  };
  return h(
    "section",
    { class: "card scroll" },
    h(
      "p",
      { class: "row" },
      h("b", {}, plural(data.rows.length, "row")),
      h("span", { class: "note" }, `in ${num(data.took_ms)} ms`),
      data.truncated && h("span", { class: "pill warn" }, "there are more"),
    ),
    data.rows.length > 0 &&
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            data.columns.map((name, i) => h("th", { class: numeric[i] ? "n" : "" }, name)),
          ),
        ),
        h(
          "tbody",
          {},
          data.rows.map((row) =>
            h(
              "tr",
              {},
              row.map((value, i) => cell(value, i, row)),
            ),
          ),
        ),
      ),
  );
}

// A row that names a rollout leads to it.
function linked(data, row, run, rollout) {
  const [kind, step] = ["kind", "step"].map((name) => row[data.columns.indexOf(name)]);
  if (kind === undefined || step === undefined) return null;
  return h("a", { href: href("rollout", { run, kind, step, rollout }) }, rollout);
}

const MOST_CHARS = 400;

function shown(value) {
  if (value === null) return h("span", { class: "note" }, "null");
  if (typeof value === "number") return num(value, 6);
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > MOST_CHARS ? `${text.slice(0, MOST_CHARS)}\u2026` : text;
}
