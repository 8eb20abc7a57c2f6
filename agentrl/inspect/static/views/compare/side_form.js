// Which two sets of rollouts are compared: run, kind and steps of each.

import { h } from "../../dom.js";
import { kindName, num } from "../../format.js";
import { go } from "../../router.js";

export function sideForm(runs, data, params) {
  const ask = (changed) => go("compare", { ...params, ...changed });
  const [a, b] = data.sides;
  // What is shown becomes the address, so that a change of one side leaves the other as it is.
  const shown = {
    run: a.run,
    kind: a.kind,
    steps: text(a.steps),
    b_run: b.run,
    b_kind: b.kind,
    b_steps: text(b.steps),
  };
  const swapped = {
    run: b.run,
    kind: b.kind,
    steps: text(b.steps),
    b_run: a.run,
    b_kind: a.kind,
    b_steps: text(a.steps),
  };
  return h(
    "form",
    { class: "card sides", onsubmit: (event) => event.preventDefault() },
    side("A", a, "", runs, (changed) => ask({ ...shown, ...changed })),
    side("B", b, "b_", runs, (changed) => ask({ ...shown, ...changed })),
    h(
      "button",
      { type: "button", onclick: () => go("compare", swapped), "data-key": "swap" },
      "Swap A and B",
    ),
  );
}

function text([first, last]) {
  return first === last ? String(first) : `${first}-${last}`;
}

function side(name, one, prefix, runs, ask) {
  const steps = one.kinds[one.kind];
  const [first, last] = one.steps;
  const pick = (label, options, value, onPick) =>
    h(
      "label",
      {},
      label,
      h(
        "select",
        {
          "aria-label": `${label} of ${name}`,
          "data-key": `${name} ${label}`,
          onchange: (event) => onPick(event.target.value),
        },
        options.map(([to, shown]) =>
          h("option", { value: to, selected: String(to) === String(value) }, shown),
        ),
      ),
    );
  const ends = (from, to) => ask({ [`${prefix}steps`]: text([from, Math.max(from, to)]) });
  const known = (step) => (steps.includes(step) ? steps : [...steps, step].sort((x, y) => x - y));
  const numbers = (step) => known(step).map((value) => [value, num(value)]);
  return h(
    "fieldset",
    { class: "filters" },
    h("legend", {}, name),
    runs.length > 1 &&
      pick(
        "run",
        runs.map((run) => [run.id, run.name]),
        one.run,
        (run) => ask({ [`${prefix}run`]: run, [`${prefix}steps`]: "" }),
      ),
    pick(
      "rollouts",
      Object.keys(one.kinds).map((kind) => [kind, kindName(kind)]),
      one.kind,
      (kind) => ask({ [`${prefix}kind`]: kind, [`${prefix}steps`]: "" }),
    ),
    pick("step from", numbers(first), first, (step) => ends(Number(step), last)),
    pick("step to", numbers(last), last, (step) =>
      ends(Math.min(first, Number(step)), Number(step)),
    ),
  );
}
