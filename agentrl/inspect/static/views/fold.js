// Collapse all, expand all: for views of many turns.

import { h } from "../dom.js";

// Two buttons, and the keys that do the same; `selector` names the elements, all of them `details`.
export function foldButtons(selector) {
  return [
    h(
      "button",
      { type: "button", "data-key": "collapse", onclick: () => foldAll(selector, false) },
      "Collapse all",
    ),
    h(
      "button",
      { type: "button", "data-key": "expand", onclick: () => foldAll(selector, true) },
      "Expand all",
    ),
  ];
}

export function foldKeys(selector) {
  return [
    { keys: ["x"], shown: "x", what: "collapse all", run: () => foldAll(selector, false) },
    { keys: ["e"], shown: "e", what: "expand all", run: () => foldAll(selector, true) },
  ];
}

function foldAll(selector, open) {
  for (const node of document.querySelectorAll(selector)) node.open = open;
}
