// Why a rollout has its reward, as the environment or its graders said; the model never saw it.

import { h, longText } from "../dom.js";

const WELL = /^\s*(passed|ok)\b/i;
const ILL = /^\s*(failed|missing|error)\b/i;
// Longer lists are shown plain: a span for each line of a log of megabytes would stall the layout.
const MOST_CHARS = 16_500;

// A card of all texts; null where there is none.
export function explanationCard(parts, { key = "explanation", title = "Why this reward", id = "why" } = {}) {
  if (!parts.length) return null;
  return h(
    "details",
    { class: "card why", "data-key": key, "data-item": "", id, open: true },
    h(
      "summary",
      {},
      h("h2", {}, title),
      h("span", { class: "note" }, "never shown to the model"),
    ),
    explanationTexts(parts, title),
  );
}

export function explanationTexts(parts, under = "") {
  return parts.map((part) => [
    part.title !== under.toLowerCase() && h("h3", {}, part.title),
    part.field === "tests" ? tests(part.text) : longText(part.text),
  ]);
}

// One line a test: how it ended is also said by a colour.
function tests(text) {
  if (text.length > MOST_CHARS) return longText(text);
  const level = (line) => (WELL.test(line) ? "good-ink" : ILL.test(line) ? "fail-ink" : null);
  return h(
    "pre",
    { class: "text" },
    text.split("\n").map((line) => h("span", { class: level(line) }, `${line}\n`)),
  );
}
