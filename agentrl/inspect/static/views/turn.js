// One turn: who spoke, what was said, which tools were called and what they answered.

import { h, longText } from "../dom.js";
import { num, plural, seconds, short, words } from "../format.js";
import { firstWords } from "./outline.js";
import { reward, status } from "./parts.js";

// `shown` makes nodes of the turn's text, with its images if it has any.
export function turn(one, id, shown = longText, images = false) {
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
    // The results of a tool turn say the same as its text, with more around it.
    one.tool_results.length || allCalls(one) ? null : shown(one.text),
    one.tool_calls.map(call),
    one.tool_results.map(result),
    one.tool_results.length > 0 &&
      one.text &&
      h(
        "details",
        { class: "raw", open: images },
        h(
          "summary",
          { class: "note" },
          one.end > one.start ? "as the model saw it" : "as it would have been shown",
        ),
        shown(one.text),
      ),
  );
}

// Whether the calls that are shown below are all of the text, but for the fence around code. A call
// may begin in the prompt, with the prefix that the config puts there.
function allCalls(one) {
  if (!one.tool_calls.length || !one.tool_calls.every((of) => of.raw && body(of))) return false;
  const text = one.text.trim();
  if (one.tool_calls[0].raw.trim().endsWith(text)) return true;
  const rest = one.tool_calls.reduce((left, of) => left.replace(of.raw.trim(), () => ""), text);
  return /^[`\s]*$/.test(rest);
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
    body(one),
    h(
      "details",
      { class: "raw" },
      h("summary", { class: "note" }, "as written"),
      longText(one.raw),
    ),
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

function result(one) {
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
    longText(one.text),
  );
}
