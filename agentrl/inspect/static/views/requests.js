// What an agent asked the model for, as a tree: what went on where, what is trained, and why a row
// broke.

import { h } from "../dom.js";
import { plural } from "../format.js";

const DEEPEST = 8;

// A card; null where the environment is no agent. `turnId` gives the element of a turn of a row.
export function requestCard(requests, turnId) {
  if (!requests?.length) return null;
  const branches = requests.filter((one) => one.branch).length;
  const refused = requests.filter((one) => one.refused).length;
  const facts = [
    plural(requests.length, "request"),
    branches > 0 && `${branches} branch${branches === 1 ? "" : "es"}`,
    refused > 0 && `${refused} refused`,
  ].filter(Boolean);
  return h(
    "details",
    { class: "card", "data-key": "requests", "data-item": "", open: true },
    h(
      "summary",
      {},
      h("h2", {}, "Requests of the agent"),
      h("span", { class: "note" }, facts.join(", ")),
    ),
    h(
      "ol",
      { class: "requests" },
      requests.map((one) => request(one, turnId)),
    ),
  );
}

function request(one, turnId) {
  return h(
    "li",
    {
      class: one.depth ? "branch" : null,
      vars: { "--depth": Math.min(one.depth, DEEPEST) },
      "data-number": one.number,
    },
    h(
      "p",
      {},
      h("span", { class: "mono" }, `#${one.number} `),
      h("strong", {}, one.kind || "request"),
      " ",
      one.refused ? h("span", { class: "fail-ink" }, `refused: ${one.refused}`) : served(one, turnId),
      one.branch && h("span", { class: "warn-ink" }, ` ${branchOf(one)}: ${one.branch}`),
      one.retries > 0 && h("span", { class: "note" }, ` asked ${plural(one.retries, "more time")}`),
    ),
    (one.asked || one.said) && h("p", { class: "note" }, `${one.asked} \u2192 ${one.said}`),
  );
}

function branchOf(one) {
  return one.behind === null ? "branch" : `branch of #${one.behind}`;
}

function served(one, turnId) {
  const trained = one.row !== null;
  const jump = () => document.getElementById(turnId(one.row, one.turn))?.scrollIntoView();
  return [
    h("span", { class: "note" }, `${one.prompt_tokens} + ${plural(one.sampled_tokens, "token")}, `),
    trained
      ? h(
          "button",
          { type: "button", class: "quiet", onclick: jump, "data-key": `request ${one.number}` },
          `row ${one.row}, turn ${one.turn}`,
        )
      : h("span", {}, `not trained: ${one.untrained || "its rollout has no rows"}`),
  ];
}
