// Beside the tokens: every number of the one that is looked at, the key of the colours, outliers.

import { h } from "../dom.js";
import { num, plural, signed, words } from "../format.js";
import { tickTexts } from "../scale.js";
import { shownToken } from "./token_text.js";

// What each number is, and its unit.
const NUMBERS = [
  ["rollout_log_prob", "sampler log-prob", "nats", "Log-probability that the sampler computed when it drew the token."],
  ["old_log_prob", "trainer log-prob", "nats", "Log-probability that the trainer computed before the first update of the step."],
  ["log_prob", "trainer log-prob, last update", "nats", "Log-probability that the trainer computed in the last update with this token; shown if it is another forward pass."],
  ["ref_log_prob", "reference log-prob", "nats", "Log-probability under the reference policy of the KL penalty."],
  ["gap", "trainer - sampler", "nats", "Trainer log-prob - sampler log-prob, before any update; 0 if both agree."],
  ["entropy", "entropy", "nats", "Entropy of the distribution that the token was drawn from; 0 if only this token was possible."],
  ["advantage", "advantage", "", "Above 0: training raises the probability; below 0: training lowers it."],
  ["ratio", "importance ratio", "", "Current probability / old probability, as in the loss; 1 means unchanged."],
  ["correction", "sampler correction", "", "Importance weight between trainer and sampler (algorithm.is_correction_type); 1 means none."],
  ["loss", "loss", "", "Contribution of this token to the loss of its update."],
];
const SIGNED = new Set(["gap", "advantage", "loss"]);

export function tokenFacts(data, i) {
  const clip = data.clip?.[i];
  const text = data.text?.[i];
  const rows = [
    [
      "position",
      i < data.n_prompt ? `${num(i)} of the prompt` : `${num(i - data.n_prompt)} of the response`,
    ],
    ["id", h("span", { class: "mono" }, String(data.ids[i]))],
    [
      "role",
      words(data.role.legend[data.role.codes[i]]) +
        placeOf(data, i),
    ],
    ["mask", data.mask[i] ? "1, sampled" : "0"],
    ["reason", data.why.legend[data.why.codes[i]]],
    ...NUMBERS.filter(([name]) => data[name]).map(([name, label, unit, what]) => [
      label,
      [value(name, data[name][i]), unit && data[name][i] !== null && h("i", {}, ` ${unit}`)],
      what,
    ]),
    data.rollout_log_prob?.[i] !== null && data.rollout_log_prob
      ? ["probability", num(Math.exp(data.rollout_log_prob[i]))]
      : null,
    data.clip && [
      "clip",
      clip === 1
        ? "clipped at the upper bound"
        : clip === -1
          ? "clipped at the lower bound"
          : clip === 0
            ? "not clipped"
            : num(null),
    ],
    data.version && [
      "policy version",
      data.version[i] === null ? num(null) : `step ${data.version[i]}`,
    ],
  ].filter(Boolean);
  return [
    h(
      "p",
      { class: "the-token mono" },
      text === null || text === undefined ? String(data.ids[i]) : shownToken(text),
    ),
    verdict(data, i),
    h(
      "dl",
      { class: "facts" },
      rows.map(([name, shown, what]) => [h("dt", { title: what }, name), h("dd", {}, shown)]),
    ),
  ];
}

function placeOf(data, i) {
  const name = data.turn[i] < 0 ? "" : data.turn_names[data.turn[i]];
  return name && `, ${name}`;
}

export function numbersExplained(data) {
  return h(
    "details",
    { class: "about", "data-key": "about numbers" },
    h("summary", {}, "What the numbers mean"),
    h(
      "dl",
      {},
      NUMBERS.filter(([name]) => data[name]).map(([, label, , what]) => [
        h("dt", {}, label),
        h("dd", { class: "note" }, what),
      ]),
    ),
  );
}

// Why it is or is not in the loss, in a sentence. Keys are how a reason begins.
const REASONS = {
  prompt: "Part of the prompt: the policy did not sample it.",
  environment: "Written by a tool, the environment or the chat template: the policy did not sample it.",
  "reply prefix": "Put at the start of each reply by the config (chat.reply_prefix).",
  "zero advantage": "All siblings have the same reward, so the advantage is zero.",
  "not in a batch": "Rollouts of evaluations are never trained on.",
  truncated: "The rollout was truncated, and the config masks those (algorithm.mask_truncated).",
  stale: "Sampled by a policy version older than the allowed policy lag.",
  dropped: "The whole rollout was dropped from the batch.",
  masked: "Masked out of the loss by a correction or a limit of the importance ratio.",
};
// What a reason is called in the legend where its own name leaves out what one sees.
const NAMED = {
  environment: "environment or chat template, such as the end of a turn",
  "reply prefix": "reply prefix, in turn 1 at the end of the prompt",
  "zero advantage: not trained": "sampled, zero advantage: no gradient, so not trained",
};

function reasonOf(text) {
  return REASONS[Object.keys(REASONS).find((start) => text.startsWith(start))] ?? null;
}

const CLIPS = {
  1: "clipped at the upper bound: no gradient",
  "-1": "clipped at the lower bound: no gradient",
  0: "not clipped",
};

// The answers one comes for: was it trained, in which direction, how far, was it clipped.
export function verdict(data, i) {
  const why = data.why.legend[data.why.codes[i]];
  if (why !== "trained") {
    return h(
      "p",
      { class: "verdict" },
      h("span", { class: "pill" }, "Not trained"),
      h("span", {}, reasonOf(why) ?? why),
    );
  }
  const advantage = data.advantage?.[i] ?? null;
  const ratio = data.ratio?.[i] ?? null;
  const clip = data.clip?.[i] ?? null;
  const way = advantage > 0 ? "Probability raised" : advantage < 0 ? "Probability lowered" : "No gradient from the reward";
  const told = [
    ratio !== null && `ratio ${value("ratio", ratio)}`,
    clip !== null && CLIPS[clip],
  ].filter(Boolean);
  return h(
    "p",
    { class: "verdict" },
    h("span", { class: `pill ${clip ? "warn" : "good"}` }, "Trained"),
    advantage !== null && h("span", {}, [way, ...told].join(", ")),
  );
}

function value(name, number) {
  // A ratio differs from 1 in its last digits only.
  return SIGNED.has(name) ? signed(number) : num(number, name === "ratio" ? 6 : 3);
}

export function legendOf(paint, overlay) {
  if (paint.legend.length && paint.legend[0].text !== undefined) {
    const total = paint.legend.reduce((a, one) => a + one.count, 0);
    return h(
      "ul",
      { class: "token-key" },
      paint.legend.map((one) =>
        h(
          "li",
          { title: reasonOf(one.text) },
          h("span", { class: "tokens key" }, h("span", { class: one.cls }, "\u00a0\u00a0")),
          h("b", {}, num(one.count)),
          h("span", {}, NAMED[one.text] ?? one.text),
        ),
      ),
      h("li", { class: "note" }, `= ${plural(total, "token")}`),
    );
  }
  const { legend } = paint;
  const middle = legend[Math.floor(legend.length / 2)];
  const ends = tickTexts([legend[0].value, middle.value, legend.at(-1).value]);
  if (overlay.unit) ends[2] += ` ${overlay.unit}`;
  return h(
    "div",
    { class: "token-scale" },
    h(
      "div",
      { class: "tokens key" },
      legend.map((one) => h("span", { class: one.cls })),
    ),
    h(
      "p",
      { class: "note" },
      ends.map((text) => h("span", {}, text)),
    ),
  );
}

export function outlierList(found, data, overlay, pick) {
  if (!found.length) return null;
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "Outliers"),
    h(
      "ol",
      { class: "outliers" },
      found.map((i) =>
        h(
          "li",
          {},
          h(
            "button",
            { onclick: () => pick(i), "data-key": `outlier ${i}` },
            h(
              "span",
              { class: "mono" },
              data.text?.[i] ? shownToken(data.text[i]).trimEnd() || "\u2423" : String(data.ids[i]),
            ),
            h("b", {}, value(overlay.id, data[overlay.id][i])),
          ),
        ),
      ),
    ),
  );
}

/** Keys that choose an overlay, in their order. */
export const OVERLAY_KEYS = "1234567890-=".split("");

/** Radio buttons, one for each overlay, with the key that chooses it. */
export function overlaySwitches(there, choose, legend) {
  return h(
    "fieldset",
    { class: "switches" },
    h("legend", { class: "hidden" }, legend),
    there.map((overlay, i) =>
      h(
        "label",
        { title: `${overlay.what} (${OVERLAY_KEYS[i]})` },
        h("input", {
          type: "radio",
          name: "overlay",
          value: overlay.id,
          "data-key": `overlay ${overlay.id}`,
          onchange: () => choose(overlay),
        }),
        h("span", {}, overlay.name),
      ),
    ),
  );
}
