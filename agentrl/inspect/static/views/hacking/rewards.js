// The rewards of one step as bars; each leads to the rollouts that were paid so.

import { h } from "../../dom.js";
import { kindName, num, plural } from "../../format.js";
import { go, href } from "../../router.js";
import { stepper } from "../parts.js";

export function rewards(data, params) {
  const { run } = params;
  const most = Math.max(...data.bars.map((bar) => bar.rollouts), 1);
  const place = { run, kind: data.kind, step_min: data.step, step_max: data.step };
  return h(
    "section",
    { class: "card", "aria-label": "Rewards of a step" },
    h(
      "div",
      { class: "row" },
      h("h2", {}, `Rewards of ${kindName(data.kind)} step ${num(data.step)}`),
      h(
        "span",
        { class: "actions" },
        kinds(data, params),
        stepper({
          label: "step",
          at: data.step,
          all: data.steps,
          to: (step) => href("hacking", { ...params, step }),
        }),
      ),
    ),
    h(
      "p",
      { class: "note" },
      `${plural(data.rollouts, "rollout")}; a bar leads to its rollouts.`,
      data.without > 0 && ` ${plural(data.without, "rollout")} without a reward that can be trusted.`,
      !data.has_score && " The environment gives no score beside the reward.",
    ),
    h(
      "ol",
      { class: "reward-bars" },
      data.bars.map((bar) =>
        h(
          "li",
          { "data-item": "" },
          h(
            "a",
            {
              href: href("find", { ...place, reward_min: bar.low, reward_max: bar.high }),
              "data-key": `bar ${bar.low}`,
              "aria-label": `reward ${range(bar)}: ${plural(bar.rollouts, "rollout")}`,
            },
            h("span", { class: "n" }, range(bar)),
            h("span", { class: "bar", vars: { "--share": bar.rollouts / most } }, h("i")),
            h("b", { class: "n" }, num(bar.rollouts)),
            data.has_score && h("span", { class: "note" }, `score ${num(bar.score)}`),
          ),
        ),
      ),
    ),
  );
}

function range(bar) {
  return bar.low === bar.high ? num(bar.low) : `${num(bar.low)} to ${num(bar.high)}`;
}

function kinds(data, params) {
  if (data.kinds.length < 2) return null;
  return h(
    "select",
    {
      "aria-label": "Kind of rollouts",
      "data-key": "kind",
      // Steps of one kind mean nothing in another.
      onchange: (event) =>
        go("hacking", { ...params, kind: event.target.value, step: "", among: "" }),
    },
    data.kinds.map((kind) =>
      h("option", { value: kind, selected: kind === data.kind }, kindName(kind)),
    ),
  );
}
