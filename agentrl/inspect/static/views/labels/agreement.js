// Labels of a run: how often each word was given, and how far reviewers and judges agree.

import { h } from "../../dom.js";
import { num, percent } from "../../format.js";
import { href } from "../../router.js";

// Returns null for a run that nobody has labelled.
export function agreementCard(run) {
  const { count, words, agreements } = run.labels;
  if (!count) return null;
  return h(
    "section",
    { class: "card scroll", "aria-label": "Labels" },
    h("h2", {}, "Labels ", h("span", { class: "note" }, `${num(count)} with comments`)),
    h(
      "ul",
      { class: "chips" },
      Object.entries(words).map(([word, times]) =>
        h(
          "li",
          {},
          h(
            "a",
            { class: "chip", href: href("find", { run: run.id, label: word }), "data-key": `label ${word}` },
            `${word} `,
            h("small", {}, num(times)),
          ),
        ),
      ),
    ),
    agreements.length > 0 && table(agreements),
  );
}

function table(agreements) {
  const heads = ["reviewers", "label", "rollouts of both", "same", "Cohen's kappa, 95 % interval"];
  return h(
    "table",
    { class: "tasks" },
    h("thead", {}, h("tr", {}, heads.map((name, i) => h("th", { class: i > 1 ? "n" : "" }, name)))),
    h(
      "tbody",
      {},
      agreements.map((one) =>
        h(
          "tr",
          { "data-item": "" },
          h("td", {}, `${one.first} and ${one.second}`),
          h("td", {}, one.label || "all words"),
          h("td", { class: "n" }, num(one.rollouts)),
          h("td", { class: "n" }, percent(one.share)),
          h("td", { class: "n" }, kappaText(one)),
        ),
      ),
    ),
  );
}

function kappaText({ kappa, kappa_interval: ends }) {
  if (kappa === null) return h("span", { class: "note" }, "one answer to all");
  return [num(kappa), ends && h("span", { class: "note" }, ` [${num(ends[0])}, ${num(ends[1])}]`)];
}
