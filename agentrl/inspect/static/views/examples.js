// Examples that a fit has measured at one evaluation: prompt, answers, and what they were worth.

import { get } from "../api.js";
import { h } from "../dom.js";
import { column, lastPart, num, plural } from "../format.js";
import { go, href } from "../router.js";
import { stepper } from "./parts.js";

async function load(params, signal) {
  const { run, dataset, step } = params;
  return get("examples", { run, dataset, step }, signal);
}

// What the columns hold for each objective: [heading, what it means, value of an example].
export function worthOf(objective) {
  const pair = "Chosen - rejected";
  if (objective.kind === "rm") {
    return [
      ["chosen", "Score of the chosen answer", (one) => one.sums[0].value],
      ["rejected", "Score of the rejected answer", (one) => one.sums[1]?.value],
      ["difference", pair, (one) => one.h],
    ];
  }
  if (objective.kind === "sft") {
    return [["log-prob", "Mean log-probability of a trained token, nats", (one) => one.sums[0].value]];
  }
  if (objective.loss === "kto") {
    return [
      ["log-ratio", "Log-probability - reference log-probability, nats", (one) => one.sums[0].value],
      ["reward", "beta times the log-ratio", (one) => one.scaled],
    ];
  }
  return [
    ["chosen", "Log-ratio to the reference (mean log-probability without one)", (one) => one.sums[0].value],
    ["rejected", "Log-ratio of the rejected answer", (one) => one.sums[1]?.value],
    ["h", pair, (one) => one.h],
    ["beta h", "Input of the loss", (one) => one.scaled],
  ];
}

// Ids of held-out examples begin with the name of their data, which is said elsewhere.
export function nameOf(id, dataset) {
  const start = `${dataset}/`;
  return (id.startsWith(start) ? id.slice(start.length) : id) || "(no name)";
}

// In words, so that a colour never says it alone.
export function verdictOf(one, objective) {
  if (objective.kind === "sft") return null;
  if (one.desirable !== null && one.desirable !== undefined) {
    return h("span", { class: "pill" }, one.desirable ? "desirable" : "undesirable");
  }
  if (one.h === null) return null;
  const [level, text] =
    one.h > 0 ? ["good", "right order"] : one.h < 0 ? ["fail", "wrong order"] : ["", "tie"];
  return h("span", { class: `pill ${level}` }, text);
}

function draw(data, params) {
  const { run } = params;
  const here = { run, dataset: data.dataset };
  const at = data.steps.indexOf(data.step);
  const move = (by) => {
    const step = data.steps[at + by];
    if (step !== undefined) go("examples", { ...here, step });
  };
  return {
    title: `Examples after step ${data.step} of ${lastPart(run)}`,
    live: true,
    crumbs: [
      ["runs", href("runs")],
      [lastPart(run), href("run", { run })],
      [`examples after step ${data.step}`, null],
    ],
    up: href("run", { run }),
    keys: [
      { keys: ["["], shown: "[", what: "the evaluation before", run: () => move(-1) },
      { keys: ["]"], shown: "]", what: "the evaluation after", run: () => move(1) },
    ],
    node: h(
      "div",
      { class: "page wide" },
      h(
        "header",
        { class: "head" },
        h("div", {}, h("h1", {}, `Examples after step ${data.step}`), h("p", { class: "sub" }, summary(data))),
        h(
          "div",
          { class: "actions" },
          data.datasets.length > 1 && datasets(data, params),
          stepper({
            label: "evaluation",
            at: data.step,
            all: data.steps,
            to: (step) => href("examples", { ...here, step }),
            name: (step) => `step ${step}`,
          }),
        ),
      ),
      table(data, here),
    ),
  };
}

function summary(data) {
  const known = data.examples.map((one) => one.h).filter((value) => value !== null);
  const right = known.filter((value) => value > 0).length;
  return [
    h("span", {}, `${plural(data.examples.length, "example")} of ${data.dataset}`),
    h("span", {}, [data.objective.kind, data.objective.loss].filter(Boolean).join(", ")),
    known.length > 0 && h("span", {}, `${num(right)} of ${num(known.length)} in the right order`),
  ];
}

function datasets(data, params) {
  const box = h(
    "select",
    {
      "aria-label": "Data",
      "data-key": "data",
      onchange: () =>
        go("examples", { run: params.run, dataset: data.datasets[box.selectedIndex], step: data.step }),
    },
    data.datasets.map((name) => h("option", { selected: name === data.dataset }, name)),
  );
  return box;
}

function table(data, here) {
  const columns = worthOf(data.objective);
  const pair = data.examples.some((one) => one.excerpts.length > 1);
  const excerpt = (text) => h("td", { class: "excerpt" }, text);
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Examples" },
    h(
      "table",
      { class: "examples" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", {}, "example"),
          columns.map(([name, what]) => h("th", { class: "num", title: what }, name)),
          h("th", {}, ""),
          h("th", {}, "end of the prompt"),
          h("th", {}, pair ? "chosen" : "answer"),
          pair && h("th", {}, "rejected"),
        ),
      ),
      h(
        "tbody",
        {},
        data.examples.map((one) =>
          h(
            "tr",
            { "data-item": "" },
            h(
              "td",
              {},
              h(
                "a",
                {
                  class: "strong",
                  href: href("example", { ...here, step: data.step, example: one.id }),
                  title: one.source || null,
                  "data-key": one.id,
                },
                nameOf(one.id, data.dataset),
              ),
            ),
            columns.map(([, , value]) => h("td", { class: "num" }, column(value(one)))),
            h("td", {}, verdictOf(one, data.objective)),
            excerpt(one.prompt),
            excerpt(one.excerpts[0]),
            pair && excerpt(one.excerpts[1] ?? ""),
          ),
        ),
      ),
    ),
  );
}

export default { load, draw };
