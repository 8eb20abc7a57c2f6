// Elements and text. Every string of a run reaches the page through here, and only as text.

const SVG = "http://www.w3.org/2000/svg";

// Characters that move the cursor, colour a terminal, or turn the reading direction. They are
// spelled out as the terminal views do, so that nothing a model wrote can hide or rearrange what
// is shown.
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;
const NAMED = { "\r": "\\r", "\u0000": "\\0", "\u001b": "\\e" };

export function visible(text) {
  return String(text).replace(UNSEEN, (char) => {
    const code = char.codePointAt(0);
    if (NAMED[char]) return NAMED[char];
    return code < 0x100
      ? `\\x${code.toString(16).padStart(2, "0")}`
      : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "vars") {
      // Through the object model: a style attribute is refused by the page's own policy.
      for (const [key, to] of Object.entries(value)) node.style.setProperty(key, to);
    } else if (name === "value" || name === "checked" || name === "open") node[name] = value;
    else node.setAttribute(name, value === true ? "" : visible(value));
  }
  append(node, children);
  return node;
}

export function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
  return node;
}

// h("p", {class: "x", onclick: f}, "text", node, [more]): an HTML element.
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

// The same for SVG.
export function s(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

const FIRST = 8_000;
const MORE = 200_000;

// Text of any length: a line of ten million characters would stall the layout, so the first part
// is shown and the rest is asked for. With `last`, so many characters of its end are shown, too.
export function longText(text, { tag = "pre", cls = "text", first = FIRST, last = 0 } = {}) {
  const whole = text ?? "";
  // Less than twice as much is shown at once: what is left out is to be worth a button.
  if (whole.length <= (last ? 2 * (first + last) : first)) return h(tag, { class: cls }, whole);
  // Between lines, where there are lines.
  const [before, after] = [whole.lastIndexOf("\n", first), whole.indexOf("\n", whole.length - last)];
  const end = last && after >= 0 && after + 1 < whole.length ? after + 1 : whole.length - last;
  let shown = last && before > first / 2 ? before + 1 : first;
  const body = h(tag, { class: cls }, whole.slice(0, shown));
  const tail = last > 0 && h(tag, { class: cls }, whole.slice(end));
  const note = h("span");
  const button = h("button", { type: "button", class: "quiet" });
  const label = () => {
    note.textContent = `${(shown + whole.length - end).toLocaleString("en")} of ${whole.length.toLocaleString("en")} characters`;
    button.textContent = `Show ${Math.min(MORE, end - shown).toLocaleString("en")} more`;
  };
  const bar = h("p", { class: "more" }, note, button);
  button.addEventListener("click", () => {
    append(body, [whole.slice(shown, Math.min(end, shown + MORE))]);
    shown = Math.min(end, shown + MORE);
    if (shown < end) return label();
    append(body, [whole.slice(end)]);
    bar.remove();
    if (tail) tail.remove();
  });
  label();
  return h("div", { class: "long" }, body, bar, tail);
}

// What a tool or the environment answered: its start says what it is, and its end how it went.
export function answerText(text) {
  return longText(text, { first: 1_500, last: 500 });
}

export function empty(title, text) {
  return h("div", { class: "empty" }, h("h2", {}, title), text && h("p", {}, text));
}
