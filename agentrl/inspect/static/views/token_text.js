// The tokens themselves: one span each, in blocks that the browser lays out only when in sight.

import { h, visible } from "../dom.js";

// Long enough that few blocks exist, short enough that one is laid out at once.
const BLOCK = 300;
const HARD = 900;

// A line break inside a token is shown and obeyed; a token without a glyph still has a width.
export function shownToken(text) {
  if (text === "") return "\u2205";
  return visible(text).replaceAll("\n", "\u21b5\n");
}

// {node, spans, turns}: `spans[i]` is token i.
export function tokenText(data) {
  const spans = new Array(data.ids.length);
  const node = h("div", {
    class: "tokens",
    tabindex: 0,
    role: "group",
    "aria-label": "Tokens; arrow keys move from one to the next",
    "data-key": "tokens",
  });
  const roles = data.role.legend;
  let at = 0;
  while (at < data.ids.length) {
    const start = at;
    const turn = data.turn[at];
    const role = data.role.codes[at];
    while (at < data.ids.length && data.turn[at] === turn && data.role.codes[at] === role) at++;
    node.append(section(data, spans, start, at, roles[role], turn));
  }
  return { node, spans };
}

function section(data, spans, start, end, role, turn) {
  const heading = h(
    "h3",
    { class: "mark-role" },
    h("span", {}, role),
    turn >= 0 && h("span", { class: "note" }, data.turn_names[turn]),
    h("span", { class: "note" }, `${(end - start).toLocaleString("en")}`),
  );
  const part = h("section", { class: `span-of role-${role}` }, heading);
  let block = null;
  for (let i = start; i < end; i++) {
    block ??= document.createElement("div");
    const span = document.createElement("span");
    const text = data.text === null ? null : data.text[i];
    span.textContent = text === null || text === undefined ? `${data.ids[i]} ` : shownToken(text);
    span.index = i;
    spans[i] = span;
    block.append(span);
    const size = block.childElementCount;
    // A block ends at a line end, so that lines break where the text does.
    if ((size >= BLOCK && text?.endsWith("\n")) || size >= HARD) {
      part.append(finished(block));
      block = null;
    }
  }
  if (block) part.append(finished(block));
  return part;
}

function finished(block) {
  block.className = "block";
  // A first guess of its height until it has been seen; then the browser knows.
  block.style.setProperty("--rows", Math.ceil(block.childElementCount / 16));
  return block;
}

export function repaint(spans, data, classes, ratio) {
  for (let i = 0; i < spans.length; i++) {
    const clip = ratio && data.clip?.[i] ? (data.clip[i] > 0 ? " clip-high" : " clip-low") : "";
    spans[i].className = classes[i] + clip;
  }
}

// Ids in front of every token, or instead of it.
export function showIds(node, spans, data, mode) {
  node.classList.toggle("with-ids", mode === "both");
  for (let i = 0; i < spans.length; i++) {
    if (mode === "both") spans[i].dataset.id = data.ids[i];
    const text = mode === "ids" || data.text === null ? null : data.text[i];
    const wanted = text === null || text === undefined ? `${data.ids[i]} ` : shownToken(text);
    if (spans[i].textContent !== wanted) spans[i].textContent = wanted;
  }
}
