// Why a rollout has its reward, as the environment or its graders said; the model never saw it.

import { h, longText } from "../dom.js";

const WELL = /^\s*(passed|ok)\b/i;
const ILL = /^\s*(failed|missing|error)\b/i;
// Longer lists are shown plain: a span for each line of a log of megabytes would stall the layout.
const MOST_CHARS = 16_500;

export const WHY = "Why this reward";

// A card of all texts; null where there is none.
export function explanationCard(
  parts,
  {
    key = "explanation",
    title = WHY,
    id = "why",
    note = "never shown to the model",
  } = {},
) {
  if (!parts.length) return null;
  return h(
    "details",
    { class: "card why", "data-key": key, "data-item": "", id, open: true },
    h(
      "summary",
      {},
      h("h2", {}, title),
      h("span", { class: "note" }, note),
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

// Failed tests first, those with one message together; what passed is a number and a fold.
function tests(text) {
  if (text.length > MOST_CHARS) return longText(text);
  const lines = text.split("\n").filter((line) => line.trim());
  const passed = lines.filter((line) => WELL.test(line));
  const failed = new Map();
  for (const line of lines.filter((one) => !WELL.test(one))) {
    const message = ILL.test(line) ? line.replace(/^[^:]*: /, "") : line;
    failed.set(message, [...(failed.get(message) ?? []), line]);
  }
  return [
    failed.size > 0 &&
      h(
        "pre",
        { class: "text" },
        [...failed].map(([message, of]) =>
          h(
            "span",
            { class: ILL.test(of[0]) ? "fail-ink" : null, title: of.join("\n") },
            of.length > 1 ? `${of.length} \u00d7 ${message}\n` : `${of[0]}\n`,
          ),
        ),
      ),
    passed.length > 0 &&
      h(
        "details",
        { class: "raw" },
        h("summary", { class: "good-ink" }, `${passed.length} of ${lines.length} passed`),
        h("pre", { class: "text" }, passed.join("\n")),
      ),
  ];
}
