// On the first screen: the tasks that gained most and lost most between two evaluations.

import { get } from "../../api.js";
import { h } from "../../dom.js";
import { num, plural } from "../../format.js";
import { href } from "../../router.js";

/** Parameters of the view that compares the first evaluation with the last; null with only one. */
export function comparison(run, score) {
  const steps = run.evals[score]?.steps ?? [];
  if (steps.length < 2) return null;
  const kind = `eval/${score}`;
  return { run: run.id, kind, steps: steps[0], b_kind: kind, b_steps: steps.at(-1) };
}

export function learned(run, brief) {
  const moved = run.evals[brief.score]?.moved;
  if (!moved || !(moved.gained_count + moved.lost_count + moved.same_count)) return null;
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
            "Why? Compare both",
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
      { class: "learned-lists" },
      list(run, moved.gained, moved.gained_count, "gained", { run: run.id, kind }),
      list(run, moved.lost, moved.lost_count, "lost", { run: run.id, kind, sort: "loss" }),
    ),
    compared && run.state !== "running" && behaviour(compared),
    h(
      "p",
      { class: "note" },
      `First against last evaluation of ${brief.score}; ${plural(moved.same_count, "task")} unchanged.`,
      run.config["eval.n_samples"] === 1 &&
        " With one rollout a task, a single task may change by chance.",
    ),
  );
}

// What changed in how it answers: two evaluations are read for it, which the first paint and a run
// that goes on do not wait for.
function behaviour(compared) {
  const node = h("ul", { class: "learned-why", "aria-label": "What changed in behaviour" });
  node.hidden = true;
  get("compare", compared).then(
    (found) => {
      const lines = [reasons(found), ...found.behaviour].filter(Boolean);
      node.append(...lines.map((text) => h("li", {}, text.replaceAll("->", "\u2192"))));
      node.hidden = !lines.length;
    },
    () => {}, // the comparison itself says what is wrong
  );
  return node;
}

// Why the tasks that are solved now failed before; each counts once, by its ending first.
function reasons({ solved_why: why }) {
  if (!why.length) return "";
  const counted = why.reduce((sum, one) => sum + one.tasks, 0);
  const named = why.map((one) => `${num(one.tasks)}: ${one.why}`).join("; ");
  return `Why ${plural(counted, "task")} that ${counted === 1 ? "is" : "are"} solved now failed before: ${named}.`;
}

function list(run, tasks, count, what, to) {
  return h(
    "div",
    {},
    h("h3", {}, h("a", { href: href("tasks", to) }, `${plural(count, "task")} ${what}`)),
    h(
      "ul",
      {},
      tasks.map((one) =>
        h(
          "li",
          {},
          h(
            "a",
            {
              href: href("task", { run: run.id, task: one.task_id }),
              "data-key": `learned ${one.task_id}`,
            },
            one.task_id,
          ),
          h("span", { class: "note" }, ` ${num(one.before)} \u2192 `),
          h("b", { class: what === "gained" ? "good-ink" : "fail-ink" }, num(one.after)),
        ),
      ),
    ),
    count > tasks.length && h("p", { class: "note" }, h("a", { href: href("tasks", to) }, `and ${num(count - tasks.length)} more`)),
  );
}
