// The change of a score by label of the tasks: which family of tasks, which level.

import { h } from "../../dom.js";
import { num, plural, signed } from "../../format.js";
import { href } from "../../router.js";

export function byLabel(data, params) {
  return Object.entries(data.by_label)
    .filter(([, values]) => values.length > 1)
    .map(([name, values], i) =>
      h(
        "details",
        { class: "card", "data-key": `by ${name}`, open: i === 0 },
        h("summary", {}, h("h2", {}, `Change by ${name}`)),
        h(
          "ul",
          { class: "by-label" },
          values.map((one) =>
            h(
              "li",
              { title: tasksText(one, name) },
              h(
                "a",
                { href: href("tasks", { ...params, label: `${name}:${one.value}`, offset: "" }) },
                /^[\d.]+$/.test(one.value) ? `${name} ${one.value}` : one.value,
              ),
              h("span", { class: "note" }, `${num(one.before)} \u2192 ${num(one.after)}`),
              changed(one.change),
            ),
          ),
        ),
      ),
    );
}

function tasksText({ tasks: [before, after], value }, name) {
  const count =
    before === after ? plural(before, "task") : `${num(before)} and ${plural(after, "task")}`;
  return `${count} with ${name} ${value}`;
}

export function changed(by) {
  const level = by > 0 ? "good-ink" : by < 0 ? "fail-ink" : "note";
  return h("span", { class: level }, signed(by));
}
