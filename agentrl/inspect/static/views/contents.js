// The rollouts that an exported page holds.

import { get } from "../api.js";
import { h } from "../dom.js";
import { kindName, plural } from "../format.js";
import { href } from "../router.js";
import { reward, termination } from "./parts.js";

async function load(params, signal) {
  return get("contents", {}, signal);
}

function draw(data) {
  const { run, rollouts } = data;
  return {
    title: `${plural(rollouts.length, "rollout")} of ${run}`,
    crumbs: [["rollouts", null]],
    node: h(
      "div",
      { class: "page" },
      h(
        "header",
        { class: "head" },
        h(
          "div",
          {},
          h("h1", {}, run),
          h(
            "p",
            { class: "sub" },
            h("span", {}, plural(rollouts.length, "rollout")),
            data.model && h("span", {}, `model ${data.model}`),
            data.version && h("span", {}, `recorded by agentrl ${data.version}`),
          ),
        ),
      ),
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          { class: "hits" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              ["step", "task", "rollout", "reward", "ended by"].map((name) => h("th", {}, name)),
            ),
          ),
          h(
            "tbody",
            {},
            rollouts.map((one) => row(one, run)),
          ),
        ),
      ),
    ),
  };
}

function row(one, run) {
  const to = href("rollout", { run, kind: one.kind, step: one.step, rollout: one.rollout_id });
  return h(
    "tr",
    { "data-item": "" },
    h("td", {}, `${kindName(one.kind)} step ${one.step}`),
    h("td", {}, one.task_id),
    h("td", {}, h("a", { class: "mono", href: to, "data-key": to }, one.rollout_id)),
    h("td", { class: "n" }, reward(one.reward)),
    h("td", {}, termination(one.termination)),
  );
}

export default { load, draw };
