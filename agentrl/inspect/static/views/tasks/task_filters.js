// Which scores of which tasks the table shows; every choice is in the address.

import { h } from "../../dom.js";
import { kindName } from "../../format.js";
import { go } from "../../router.js";
import { stepsName } from "./score_cell.js";

const WAS = { zero: "0: never solved", between: "between 0 and 1", one: "1: always solved" };
// A list of hundreds of steps is no choice; ranges are.
const MOST_STEPS = 60;

export function taskFilters(data, params) {
  const change = (name) => (event) => ask({ [name]: event.target.value });
  const ask = (changed) => {
    // Steps of one kind mean nothing in another.
    const kept = "kind" in changed ? { ...params, before: "", after: "" } : params;
    go("tasks", { ...kept, ...changed, offset: "" });
  };
  const choice = (name, label, options, value) =>
    h(
      "label",
      {},
      label,
      h(
        "select",
        { name, "aria-label": label, "data-key": `tasks ${label}`, onchange: change(name) },
        options.map(([to, text]) => h("option", { value: to, selected: to === value }, text)),
      ),
    );
  const text = h("input", {
    type: "search",
    name: "q",
    value: params.q ?? "",
    placeholder: "Part of a task's id",
    "aria-label": "Part of a task's id",
    "data-key": "tasks q",
  });
  const kinds = Object.keys(data.kinds).map((kind) => [kind, kindName(kind)]);
  return h(
    "form",
    {
      class: "card",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        ask({ q: text.value });
      },
    },
    h("div", { class: "search" }, text, h("button", { type: "submit" }, "Filter")),
    h(
      "div",
      { class: "filters" },
      choice("kind", "rollouts", kinds, data.kind),
      choice("before", "before", steps(data, data.before), key(data.before)),
      choice("after", "after", steps(data, data.after), key(data.after)),
      choice(
        "measure",
        "measure",
        [
          ["score", "score"],
          ["reward", "reward"],
        ],
        data.measure,
      ),
      choice("was", "score before", [["", "any"], ...Object.entries(WAS)], params.was ?? ""),
      Object.entries(data.labels).map(([name, values]) =>
        choice(
          "label",
          name,
          [["", "any"], ...values.map((value) => [`${name}:${value}`, value])],
          params.label ?? "",
        ),
      ),
    ),
  );
}

function key([first, last]) {
  return first === last ? String(first) : `${first}-${last}`;
}

function steps(data, chosen) {
  const all = data.kinds[data.kind];
  const ranges = data.columns.filter(([first, last]) => first !== last);
  const single = all.length > MOST_STEPS ? [all[0], all.at(-1)] : all;
  const found = [chosen, ...ranges, ...single.map((step) => [step, step])];
  return [...new Map(found.map((range) => [key(range), stepsName(range)]))];
}
