// One example of a fit: the prompt once, its answers side by side, a number for every token.

import { get } from "../api.js";
import { h } from "../dom.js";
import { lastPart, num, plural, signed } from "../format.js";
import { go, href, replace } from "../router.js";
import { nameOf, verdictOf, worthOf } from "./examples.js";
import { paintOf, present } from "./overlays.js";
import { stepper } from "./parts.js";
import { OVERLAY_KEYS, legendOf, overlaySwitches } from "./token_side.js";
import { repaint, shownToken, tokenText } from "./token_text.js";

const OVERLAYS = [
  {
    id: "log_ratio",
    name: "Log-ratio",
    kind: "both",
    middle: 0,
    unit: "nats",
    what: "Log-probability - reference log-probability: above 0 the training has raised the probability",
  },
  { id: "log_prob", name: "Policy", kind: "low", unit: "nats", what: "Log-probability after this step" },
  { id: "ref_log_prob", name: "Reference", kind: "low", unit: "nats", what: "Log-probability under the reference" },
];

async function load(params, signal) {
  const { run, dataset, step, example } = params;
  return get("example", { run, dataset, step, example }, signal);
}

function draw(data, given) {
  const params = { ...given };
  const { run, dataset } = params;
  const here = { run, dataset, step: data.step, example: data.id };
  const up = href("examples", { run, dataset, step: data.step });
  const drawn = stage(data, params);
  const step = neighbour(data.steps, data.step);
  const other = neighbour(data.neighbours, data.id);
  return {
    title: `Example ${data.id} after step ${data.step} of ${lastPart(run)}`,
    crumbs: [
      ["runs", href("runs")],
      [lastPart(run), href("run", { run })],
      [`examples after step ${data.step}`, up],
      [nameOf(data.id, data.dataset), null],
    ],
    up,
    keys: [
      { keys: ["["], shown: "[", what: "the evaluation before", run: () => step(-1, (to) => go("example", { ...here, step: to })) },
      { keys: ["]"], shown: "]", what: "the evaluation after", run: () => step(1, (to) => go("example", { ...here, step: to })) },
      { keys: ["p"], shown: "p", what: "the example before", run: () => other(-1, (to) => go("example", { ...here, example: to })) },
      { keys: ["n"], shown: "n", what: "the example after", run: () => other(1, (to) => go("example", { ...here, example: to })) },
      ...drawn.keys,
    ],
    node: h(
      "div",
      { class: "page wide" },
      h(
        "header",
        { class: "head" },
        h("div", {}, h("h1", {}, nameOf(data.id, data.dataset), " ", verdictOf(data, data.objective)), facts(data)),
        h(
          "div",
          { class: "actions" },
          stepper({
            label: "evaluation",
            at: data.step,
            all: data.steps,
            to: (to) => href("example", { ...here, step: to }),
            name: (to) => `step ${to}`,
          }),
        ),
      ),
      worth(data),
      prompt(data),
      drawn.node,
    ),
    after: drawn.after,
  };
}

function neighbour(all, here) {
  const at = all.indexOf(here);
  return (by, then) => at + by >= 0 && at + by < all.length && then(all[at + by]);
}

// Only what is known of it.
function facts(data) {
  const known = (value) => value !== null && value !== undefined;
  return h(
    "p",
    { class: "sub" },
    data.source && h("span", { class: "mono" }, data.source),
    known(data.margin) && h("span", { title: "Reward of chosen - rejected" }, `margin ${signed(data.margin)}`),
    known(data.label_probability) && h("span", {}, `label probability ${num(data.label_probability)}`),
    data.weight !== 1 && h("span", {}, `weight ${num(data.weight)}`),
    h("span", {}, [data.objective.kind, data.objective.loss].filter(Boolean).join(", ")),
    data.objective.kind === "dpo" && h("span", {}, `beta ${num(data.objective.beta)}`),
  );
}

function worth(data) {
  const { steps, values } = data.course;
  const what = data.answers.length > 1 ? "h" : "value";
  return h(
    "section",
    { class: "card worth", "aria-label": "Scores of this example" },
    h(
      "dl",
      { class: "facts" },
      worthOf(data.objective).map(([name, said, value]) => [
        h("dt", { title: said }, name),
        h("dd", {}, signed(value(data))),
      ]),
    ),
    steps.length > 1 &&
      h(
        "p",
        { class: "note" },
        `${what} by step: `,
        steps.map((step, i) => `${step}: ${signed(values[i])}`).join(", "),
      ),
  );
}

function prompt(data) {
  const text = data.prompt_text ?? data.prompt_ids.map((id) => `${id} `);
  return h(
    "details",
    { class: "card prompt", "data-key": "prompt", open: data.prompt_ids.length <= 400 },
    h("summary", {}, h("h2", {}, "Prompt ", h("span", { class: "note" }, plural(data.prompt_ids.length, "token")))),
    h("pre", { class: "text" }, text.join("").slice(0, 100_000)),
  );
}

function stage(data, params) {
  const there = OVERLAYS.filter((overlay) =>
    data.answers.some((answer) => present(overlay, answer)),
  );
  const legend = h("div");
  const said = h("div", { id: "token-facts", role: "status" });
  const parts = data.answers.map((answer) => oneAnswer(data, answer, said));
  const choose = (overlay) => {
    // One scale for both answers, or their colours could not be compared.
    const together = data.answers.flatMap(
      (answer) => answer[overlay.id] ?? answer.ids.map(() => null),
    );
    const paint = paintOf(overlay, { [overlay.id]: together });
    let from = 0;
    for (const part of parts) {
      const to = from + part.spans.length;
      repaint(part.spans, {}, paint.classes.slice(from, to), false);
      part.spans.forEach((span, i) => span.classList.toggle("untrained", !part.answer.trained[i]));
      from = to;
    }
    legend.replaceChildren(h("p", { class: "note" }, overlay.what), legendOf(paint, overlay));
    for (const box of switches.querySelectorAll("input")) box.checked = box.value === overlay.id;
    params.over = overlay.id;
    replace("example", params);
  };
  const switches = overlaySwitches(there, choose, "Colour by");
  const first = there.find((overlay) => overlay.id === params.over) ?? there[0];
  return {
    keys: there.map((overlay, i) => ({
      keys: [OVERLAY_KEYS[i]],
      shown: OVERLAY_KEYS[i],
      what: `colour by ${overlay.name.toLowerCase()}`,
      run: () => choose(overlay),
    })),
    node: h(
      "div",
      {},
      there.length > 0 && h("div", { class: "card answer-bar" }, switches, legend, said),
      h(
        "div",
        { class: `answers${data.answers.length > 1 ? " two" : ""}` },
        parts.map((part) => part.node),
      ),
    ),
    after: () => first && choose(first),
  };
}

function oneAnswer(data, answer, said) {
  const sums = data.sums[data.answers.indexOf(answer)];
  const text = tokenText({
    ids: answer.ids,
    text: answer.text,
    turn: answer.ids.map(() => -1),
    role: { legend: [answer.name], codes: answer.ids.map(() => 0) },
  });
  let at = -1;
  const look = (i) => {
    text.spans[at]?.removeAttribute("data-here");
    at = Math.max(0, Math.min(text.spans.length - 1, i));
    const span = text.spans[at];
    span.setAttribute("data-here", "");
    span.scrollIntoView({ block: "nearest" });
    said.replaceChildren(tokenLine(answer, at));
  };
  text.node.setAttribute("aria-label", `Tokens of the ${answer.name} answer; arrow keys move from one to the next`);
  text.node.dataset.key = `tokens ${answer.name}`;
  text.node.setAttribute("data-item", "");
  text.node.addEventListener("pointerover", (event) => event.target.index !== undefined && look(event.target.index));
  text.node.addEventListener("focus", () => at < 0 && look(0));
  text.node.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 12, ArrowUp: -12 }[event.key];
    if (by === undefined || !text.spans.length) return;
    event.preventDefault();
    event.stopPropagation();
    look(at + by);
  });
  const rows = [
    ["tokens", sums.tokens, "Trained tokens"],
    ["log-prob", sums.log_prob, "Sum over trained tokens, nats"],
    ["reference", sums.ref_log_prob, "The same under the reference"],
    ["log-ratio", sums.log_ratio, "Log-prob - reference"],
    ["score", sums.score, "Raw score of the reward model"],
  ].filter(([, value]) => value !== null);
  return {
    answer,
    spans: text.spans,
    node: h(
      "section",
      { class: `answer role-${answer.name}`, "aria-label": answer.name },
      h(
        "dl",
        { class: "facts" },
        rows.map(([name, value, what]) => [h("dt", { title: what }, name), h("dd", {}, num(value, 4))]),
      ),
      text.node,
    ),
  };
}

function tokenLine(answer, i) {
  const text = answer.text?.[i];
  const numbers = OVERLAYS.filter((overlay) => answer[overlay.id]).map(
    (overlay) => `${overlay.name.toLowerCase()} ${signed(answer[overlay.id][i])}`,
  );
  return h(
    "p",
    {},
    h("b", { class: "mono" }, text === null || text === undefined ? String(answer.ids[i]) : shownToken(text)),
    ` id ${answer.ids[i]}, ${answer.trained[i] ? numbers.join(", ") || "trained" : "not trained"}`,
  );
}

export default { load, draw };
