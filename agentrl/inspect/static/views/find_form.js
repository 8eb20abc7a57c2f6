// What one can ask of the rollouts of a run: text, and a field for each filter.

import { h } from "../dom.js";
import { kindName, words } from "../format.js";
import { go } from "../router.js";
import { endings } from "./parts.js";

const TOOL_STATUS = [
  "any_error",
  "error",
  "invalid_arguments",
  "unknown_tool",
  "malformed",
  "unclosed",
  "missing_name",
  "over_cap",
  "timeout",
];
const ROLES = ["assistant", "tool", "user", "system", "prompt"];
const SORT_NAMES = {
  "-reward": "highest reward",
  reward: "lowest reward",
  "-score": "highest score",
  score: "lowest score",
  "-tokens": "most tokens",
  tokens: "fewest tokens",
  "-step": "newest step",
};
const SORTS = Object.keys(SORT_NAMES);
export const FILTERS = [
  ["task", "task", "text"],
  ["step_min", "step from", "number"],
  ["step_max", "step to", "number"],
  ["reward_min", "reward from", "number"],
  ["reward_max", "reward to", "number"],
  ["score_min", "score from", "number"],
  ["score_max", "score to", "number"],
  ["lag_min", "policy lag, at least", "number"],
  ["gap_min", "sampler gap, at least", "number"],
  ["like", "answer like that of rollout", "text"],
  ["cause", "failed by", "text"],
  ["against", "in a comparison with", "text"],
];
export function form(data, params) {
  const inputs = {};
  const field = (name, label, type) => {
    inputs[name] = h("input", {
      type,
      step: type === "number" ? "any" : null,
      value: params[name] ?? "",
      name,
      "data-key": `filter ${name}`,
    });
    return h("label", {}, label, inputs[name]);
  };
  const choice = (name, label, values, show = words) => {
    const known =
      !params[name] || values.includes(params[name]) ? values : [...values, params[name]];
    inputs[name] = h(
      "select",
      { name, "data-key": `filter ${name}` },
      h("option", { value: "" }, "any"),
      known.map((value) => h("option", { value, selected: value === params[name] }, show(value))),
    );
    return h("label", {}, label, inputs[name]);
  };
  const tick = (name, label) => {
    inputs[name] = h("input", {
      type: "checkbox",
      name,
      checked: Boolean(params[name]),
      "data-key": `filter ${name}`,
    });
    return h("label", { class: "tick" }, inputs[name], label);
  };
  inputs.q = h("input", {
    id: "find-text",
    type: "search",
    name: "q",
    value: params.q ?? "",
    placeholder: "Text, /regular expression/, or filters: role:assistant reward<0.5 sort:-tokens",
    "aria-label": "Text to find",
    "data-key": "find-text",
  });
  const ask = () => {
    const asked = {};
    for (const [name, input] of Object.entries(inputs)) {
      const value = input.type === "checkbox" ? (input.checked ? "true" : "") : input.value;
      if (value !== "") asked[name] = value;
    }
    go("find", { run: data.run, ...asked });
  };
  return h(
    "form",
    {
      class: "card",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        ask();
      },
      onchange: (event) => event.target.matches("select, [type=checkbox]") && ask(),
    },
    h(
      "div",
      { class: "search" },
      inputs.q,
      h("button", { class: "primary", type: "submit" }, "Find"),
    ),
    h(
      "div",
      { class: "filters" },
      choice("kind", "kind", data.kinds, kindName),
      FILTERS.slice(0, 7).map((one) => field(...one)),
      choice("termination", "ended by", endings()),
      choice("tool_status", "tool call", TOOL_STATUS),
      choice("role", "text of", ROLES),
      choice("sort", "sorted by", SORTS, (order) => SORT_NAMES[order] ?? order),
      FILTERS.slice(7).map((one) => field(...one)),
      tick("truncated", "truncated"),
      tick("zero_advantage", "zero advantage"),
    ),
  );
}
