// One sibling's text, or how it differs from that of a chosen one.

import { diff } from "../diff.js";
import { h, longText } from "../dom.js";

// Longer texts are shown plain: a difference of that size is not read anyway.
const MOST_CHARS = 60_000;

export function actionText(text, against) {
  if (against !== null && text.length + against.length < MOST_CHARS) return changes(against, text);
  return longText(text);
}

function changes(from, to) {
  const parts = diff(from, to);
  if (parts.every(([kind]) => kind === "same")) return h("p", { class: "note" }, "The same text.");
  return h(
    "pre",
    { class: "text" },
    parts.map(([kind, part]) =>
      kind === "same" ? part : h(kind === "gone" ? "del" : "ins", {}, part),
    ),
  );
}

export function patchText(one, base) {
  if (!one.patch) return h("p", { class: "note" }, "No patch.");
  if (base?.patch && base !== one && one.patch.length + base.patch.length < MOST_CHARS) {
    return changes(base.patch, one.patch);
  }
  return unified(one.patch);
}

// A unified diff, its lines coloured by what they do.
export function unified(patch) {
  const lines = patch.slice(0, MOST_CHARS).split("\n");
  const kind = (line) => {
    if (/^(\+\+\+|---|diff |index )/.test(line)) return "file";
    if (line.startsWith("@@")) return "place";
    return line.startsWith("+") ? "new" : line.startsWith("-") ? "gone" : "";
  };
  return h(
    "pre",
    { class: "text unified" },
    lines.map((line) => h("span", { class: kind(line) }, `${line}\n`)),
    patch.length > MOST_CHARS &&
      h("span", { class: "note" }, "(cut here; the export has all of it)"),
  );
}
