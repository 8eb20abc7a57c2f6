// Keys: a few for every view, and those a view brings along.

import { h } from "./dom.js";

const EVERYWHERE = [
  ["j / k", "next, previous item"],
  ["Enter", "open the item"],
  ["u", "one level up"],
  ["/", "find"],
  ["r", "all runs"],
  ["c", "copy the link to what is shown"],
  ["d", "dark or light"],
  ["?", "this list"],
];

let ofView = [];
let actions = {};

export function setViewKeys(keys) {
  ofView = keys ?? [];
}

export function startKeys(given) {
  actions = given;
  document.addEventListener("keydown", press);
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]"))
    return;
  const target = event.target;
  const typing = target.matches("input:not([type=radio], [type=checkbox]), textarea, select");
  if (typing) {
    if (event.key === "Escape") target.blur();
    return;
  }
  // A chart, a slider or a row of radio buttons keeps its arrows.
  const keeps = "input, [role=slider], summary:not(.turn > summary)";
  if (event.key.startsWith("Arrow") && target.matches(keeps)) return;
  const own = ofView.find((entry) => entry.keys.includes(event.key));
  const run = own?.run ?? actions[event.key];
  if (!run) return;
  event.preventDefault();
  run(event);
}

// Moves the focus along whatever a view marks with `data-item`, in the order of the page.
export function moveItem(by) {
  const reached = "a, button, [tabindex], summary";
  const items = [...document.querySelectorAll("#main [data-item]")].filter(
    (item) => item.checkVisibility() && (item.matches(reached) || item.querySelector(reached)),
  );
  if (!items.length) return;
  const held = document.activeElement?.closest("[data-item]");
  const at = items.indexOf(held);
  const to = at < 0 ? (by > 0 ? 0 : items.length - 1) : at + by;
  const item = items[Math.max(0, Math.min(items.length - 1, to))];
  const target = item.matches(reached) ? item : item.querySelector(reached);
  target.focus({ preventScroll: true });
  item.scrollIntoView({ block: "nearest" });
}

export function showHelp() {
  const dialog = document.getElementById("help");
  const list = (rows) =>
    h(
      "dl",
      { class: "keys" },
      rows.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)]),
    );
  const more = ofView.length
    ? [h("h3", {}, "In this view"), list(ofView.map((entry) => [entry.shown, entry.what]))]
    : [];
  dialog.replaceChildren(
    h("h2", { id: "help-title" }, "Keys"),
    list(EVERYWHERE),
    ...more,
    h("button", { class: "quiet", autofocus: true, onclick: () => dialog.close() }, "Close"),
  );
  dialog.showModal();
}
