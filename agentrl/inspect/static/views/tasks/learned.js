// On the first screen: the tasks that gained most and lost most between two evaluations.

import { get } from "../../api.js";
import { h } from "../../dom.js";
import { num, plural } from "../../format.js";
import { href } from "../../router.js";
import { behaviourList, causeTable } from "../compare/why.js";
import { stepsName } from "./score_cell.js";

/** Parameters of the view that compares the first evaluation with the last; null with only one. */
export function comparison(run, score) {
  const steps = run.evals[score]?.steps ?? [];
  if (steps.length < 2) return null;
  const kind = `eval/${score}`;
  return { run: run.id, kind, steps: steps[0], b_kind: kind, b_steps: steps.at(-1) };
}

export function learned(run, brief) {
  const moved = run.evals[brief.score]?.moved;
  if (!moved || !(moved.gained_count + moved.lost_count + moved.same_count)) return training(run);
  const kind = `eval/${brief.score}`;
  const compared = comparison(run, brief.score);
  return h(
    "section",
    { class: "card learned", "aria-labelledby": "learned-title" },
    h(
      "header",
      { class: "row" },
      h("h2", { id: "learned-title" }, "What did it learn, what did it forget?"),
      h(
        "span",
        { class: "row" },
        compared &&
          h(
            "a",
            { class: "button", href: href("compare", compared), "data-key": "what changed" },
            "Compare both",
          ),
        h(
          "a",
          { class: "button", href: href("tasks", { run: run.id, kind }), "data-key": "all tasks" },
          "All tasks",
        ),
      ),
    ),
    h(
      "div",
      { class: compared && run.state !== "running" ? "learned-lists why" : "learned-lists" },
      compared && run.state !== "running" && reasons(compared, `the score of ${brief.score}`),
      lists(moved, { run: run.id, kind }),
    ),
    h(
      "p",
      { class: "note" },
      `First against last evaluation of ${brief.score}; `,
      moved.families && [
        h("a", { href: href("tasks", { run: run.id, kind }) }, `${plural(moved.gained_count, "task")} gained`),
        ", ",
        h("a", { href: href("tasks", { run: run.id, kind, sort: "loss" }) }, `${num(moved.lost_count)} lost`),
        ", ",
      ],
      `${plural(moved.same_count, "task")} unchanged.`,
      run.config["eval.n_samples"] === 1 &&
        " With one rollout a task, a single task may change by chance.",
    ),
  );
}

// Without two evaluations: the first steps of training against the last, with other tasks.
function training(run) {
  const steps = run.metrics.reward?.steps.length ?? 0;
  if (steps < 2 || !run.kinds.includes("train") || run.state === "running") return null;
  return h(
    "section",
    { class: "card learned", "aria-label": "What did it learn?" },
    h("h2", {}, "What did it learn?"),
    reasons({ run: run.id, kind: "train" }, "the score in training"),
    h("p", { class: "note" }, "First against last steps; if each had its own tasks, a change may come from these."),
  );
}

// Why the score moved, and what changed in how it answers: two evaluations are read for it, which
// the first paint and a run that goes on do not wait for.
function reasons(compared, what) {
  const node = h("div", { class: "learned-why", "aria-label": "Why the score moved", role: "group" });
  get("compare", compared).then(
    (found) => {
      const { explained: change, headline, sides } = found;
      // Of other tasks no interval is known: what stands below the table says so.
      const chance = found.common_tasks > 0 && !headline.better;
      const names = sides.map(({ steps }) => stepsName(steps));
      node.append(
        h("h3", {}, change ? question(what, change, chance) : `${what} did not change.`),
        ...[causeTable(found, names), behaviourList(found)].flat().filter(Boolean),
      );
    },
    (error) => node.append(h("p", { class: "note" }, error.message)),
  );
  return node;
}

function question(what, change, chance) {
  const moved = change > 0 ? "rise" : "fall";
  return `Why did ${what} ${moved} by ${num(Math.abs(change))}?${chance ? " (It may be chance.)" : ""}`;
}

// By family where a label divides the tasks: what is common to several tasks is seldom chance.
function lists(moved, place) {
  const { families } = moved;
  const of = families ?? moved;
  return ["gained", "lost"].map((what) => {
    const to = what === "lost" ? { ...place, sort: "loss" } : place;
    const rows = families
      ? of[what].map((one) => familyRow(one, families.label, what, to))
      : of[what].map((one) => taskRow(one, what, to));
    return list(rows, of[`${what}_count`], what, families ? families.label : "", to);
  });
}

function familyRow({ value, tasks: [n], before, after }, label, what, to) {
  const name = /^[\d.]+$/.test(value) ? `${label} ${value}` : value;
  const address = href("tasks", { ...to, label: `${label}:${value}` });
  return row(h("a", { href: address, "data-key": `family ${value}` }, name), plural(n, "task"), before, after, what);
}

function taskRow({ task_id: id, before, after }, what, { run }) {
  const address = href("task", { run, task: id });
  return row(h("a", { href: address, "data-key": `learned ${id}` }, id), "", before, after, what);
}

function row(link, size, before, after, what) {
  return h(
    "li",
    {},
    link,
    h("span", { class: "note" }, `${size && ` ${size},`} ${num(before)} \u2192 `),
    h("b", { class: what === "gained" ? "good-ink" : "fail-ink" }, num(after)),
  );
}

function list(rows, count, what, label, to) {
  const title = label ? `By ${label}: ${num(count)} ${what}` : `${plural(count, "task")} ${what}`;
  return h(
    "div",
    {},
    h("h3", {}, h("a", { href: href("tasks", to) }, title)),
    h("ul", {}, rows),
    count > rows.length && h("p", { class: "note" }, h("a", { href: href("tasks", to) }, `and ${num(count - rows.length)} more`)),
  );
}
