// One turn: who spoke, what was said, which tools were called and what they answered.

import { answerText, h, longText } from "../dom.js";
import { num, plural, seconds, short, words } from "../format.js";
import { firstWords } from "./outline.js";
import { reward, status } from "./parts.js";

// `shown` makes nodes of the turn's texts, with its images if it has any.
export function turn(one, id, shown = (text) => longText(text)) {
  return h(
    "details",
    {
      class: `turn role-${one.role}`,
      id: `turn-${id}`,
      "data-item": "",
      "data-key": `turn ${id}`,
      open: true,
    },
    h("summary", {}, heading(one)),
    one.texts.length ? inOrder(one, shown) : shown(one.text, { show: one.role === "assistant" ? longText : answerText }),
    marked(one) &&
      h(
        "details",
        { class: "raw" },
        h(
          "summary",
          { class: "note" },
          one.end > one.start ? "as the model saw it" : "as it would have been shown",
        ),
        longText(one.text),
      ),
  );
}

// Calls or results, each in its place among the texts around them.
function inOrder(one, shown) {
  const calls = one.tool_calls.length > 0;
  const boxes = calls ? one.tool_calls : one.tool_results;
  const show = calls ? longText : answerText;
  return one.texts.map((text, i) => [
    (text || i === boxes.length) && shown(text, { last: i === boxes.length, show }),
    i < boxes.length && (calls ? call(boxes[i]) : result(boxes[i], shown)),
  ]);
}

// Whether a turn of results has marks around them, which its boxes do not show.
function marked(one) {
  if (!one.tool_results.length || !one.text) return false;
  const parts = one.texts.flatMap((text, i) => [text, one.tool_results[i]?.text]);
  return parts.filter(Boolean).join("\n") !== one.text;
}

// Role, place and facts of a turn, and its first words, which show while it is collapsed.
export function heading(one) {
  const tokens = one.end - one.start;
  return [
    h("span", { class: "role" }, one.role),
    one.name && h("span", { class: "note" }, one.name),
    h("span", { class: "note" }, tokens ? trainedText(one, tokens) : "no tokens: the rollout had ended"),
    one.duration_s > 0 && h("span", { class: "note" }, seconds(one.duration_s)),
    one.finish_reason &&
      one.finish_reason !== "stop" &&
      h("span", { class: "pill warn" }, `ended by ${words(one.finish_reason)}`),
    one.repeats && h("span", { class: "pill warn" }, one.repeats),
    h("span", { class: "said" }, firstWords(one)),
    earned(one),
  ];
}

// The reward of a turn is the environment's; what the config weighs by 0 trained nothing.
function earned({ reward: value, reward_weight: weight = 1 }) {
  if (value === null || value === undefined) return null;
  if (weight === 1) return h("span", { class: "earned" }, "reward ", reward(value));
  if (weight === 0)
    return h("span", { class: "earned note" }, `environment's reward ${num(value)} (weight 0: not paid)`);
  return h("span", { class: "earned" }, "environment's reward ", reward(value), ` (weight ${short(weight)})`);
}

// "46 of 152 tokens trained; 106 zero advantage".
function trainedText({ trained, others }, tokens) {
  const reasons = Object.entries(others).sort((a, b) => b[1] - a[1]);
  if (!reasons.length) return `${plural(tokens, "token")}, all trained`;
  const [[only]] = reasons;
  const short = (reason) => reason.replace(": not trained", "").replace("not in a batch (evaluation)", "evaluation");
  if (!trained && reasons.length === 1) return `${plural(tokens, "token")}, none trained: ${short(only)}`;
  const why = reasons.map(([reason, count]) => `${num(count)} ${short(reason)}`).join(", ");
  return `${num(trained)} of ${plural(tokens, "token")} trained; ${why}`;
}

// How the calls and results of a turn went, without their texts.
export function outcomes(one) {
  return [...one.tool_calls, ...one.tool_results]
    .filter((of) => of.status !== "ok" || "exit_code" in of)
    .map((of) => h("p", { class: "call-line" }, h("b", { class: "mono" }, of.name), " ", status(of.status)));
}

function call(one) {
  return h(
    "section",
    { class: `call${one.status === "ok" ? "" : " broken"}` },
    h(
      "header",
      {},
      h("span", { class: "note" }, "call"),
      h("b", { class: "mono" }, one.name || "(no name)"),
      one.status !== "ok" && status(one.status),
    ),
    one.error && h("p", { class: "fail-ink" }, one.error),
    body(one)
      ? [
          body(one),
          one.raw &&
            h(
              "details",
              { class: "raw" },
              h("summary", { class: "note" }, "as written"),
              longText(one.raw),
            ),
        ]
      : one.raw && longText(one.raw),
  );
}

// Arguments one below the other: code in them is read as code, not as an escaped string.
function body(one) {
  let values = one.arguments;
  if (typeof values === "string") {
    try {
      values = JSON.parse(values);
    } catch {
      return values ? longText(values) : null;
    }
  }
  if (!values || typeof values !== "object") return null;
  const entries = Object.entries(values);
  if (!entries.length) return null;
  return h(
    "dl",
    { class: "arguments" },
    entries.map(([name, value]) => [
      h("dt", { class: "mono" }, name),
      h("dd", {}, longText(typeof value === "string" ? value : JSON.stringify(value, null, 1))),
    ]),
  );
}

function result(one, shown) {
  const exit = one.exit_code;
  return h(
    "section",
    { class: `result${one.status === "ok" ? "" : " broken"}` },
    h(
      "header",
      {},
      h("span", { class: "note" }, "result"),
      h("b", { class: "mono" }, one.name),
      status(one.status),
      exit !== null &&
        exit !== undefined &&
        h("span", { class: `pill ${exit === 0 ? "" : "fail"}` }, `exit ${num(exit)}`),
      one.duration_s !== null && h("span", { class: "note" }, seconds(one.duration_s)),
      one.truncated && h("span", { class: "pill warn" }, "output was cut"),
    ),
    shown(one.text, { last: false, show: answerText }),
  );
}
