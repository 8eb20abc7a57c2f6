// The turns of a rollout as a list to jump from: for rollouts of hundreds of turns.

import { h } from "../dom.js";
import { num, plural, words } from "../format.js";

// Shorter rollouts are seen at a glance.
const FEWEST = 4;
const WORDS = 60;

// A card; `turns` are [{one, id}] in the order of the page, `explained` the title of the reasons.
// Turns of the model have numbers, from 1.
export function outline(turns, { explained }) {
  if (turns.length < FEWEST) return null;
  const own = turns.filter(({ one }) => one.role === "assistant");
  const links = turns.map(({ one, id }) => link(one, id, own.findIndex((of) => of.one === one)));
  const bad = turns.filter(({ one }) => trouble(one));
  const wide = matchMedia("(min-width: 901px)").matches;
  const box = h("input", {
    type: "number",
    min: 1,
    max: own.length,
    placeholder: `1 to ${own.length}`,
    "aria-label": "Go to turn",
    "data-key": "go to turn",
  });
  return h(
    "details",
    { class: "card outline", "data-key": "outline", open: wide },
    h(
      "summary",
      {},
      h("h2", {}, "Outline"),
      h("span", { class: "note" }, plural(own.length, "turn")),
    ),
    h(
      "form",
      {
        class: "row",
        onsubmit: (event) => {
          event.preventDefault();
          const wanted = own[Math.min(own.length, Math.max(1, Number(box.value))) - 1];
          if (box.value !== "" && wanted) jumpTo(`turn-${wanted.id}`);
        },
      },
      box,
      h("button", {}, "Go"),
      bad.length > 0 &&
        h(
          "button",
          {
            type: "button",
            title: `${plural(bad.length, "place")} where a call or a tool failed (f)`,
            onclick: () => nextTrouble(),
          },
          "Next failure",
        ),
      explained &&
        h("button", { type: "button", onclick: () => jumpTo("why") }, explained),
    ),
    h("ol", {}, links),
  );
}

// The next turn with a call or a tool that failed, below the one that is read; then from the top.
export function nextTrouble() {
  const marked = [...document.querySelectorAll(".outline [data-trouble]")];
  if (!marked.length) return;
  const here = document.activeElement?.closest(".turn")?.id;
  const all = [...document.querySelectorAll(".turns .turn[id]")].map((node) => node.id);
  const next = marked.find((node) => all.indexOf(node.dataset.turn) > all.indexOf(here));
  jumpTo((next ?? marked[0]).dataset.turn);
}

export function jumpTo(id) {
  const target = document.getElementById(id);
  if (!target) return;
  target.open = true;
  target.scrollIntoView({ block: "start" });
  target.querySelector("summary")?.focus({ preventScroll: true });
}

function link(one, id, own) {
  const failed = trouble(one);
  return h(
    "li",
    {},
    h(
      "button",
      {
        type: "button",
        class: `quiet role-${one.role}`,
        "data-turn": `turn-${id}`,
        "data-trouble": failed ? "" : null,
        onclick: () => jumpTo(`turn-${id}`),
      },
      own >= 0 && [h("span", { class: "note" }, String(own + 1)), " "],
      h("b", {}, one.role),
      failed && h("span", { class: "fail-ink" }, ` ${words(failed)}`),
      one.reward && one.reward_weight !== 0 ? h("span", { class: "note" }, ` reward ${num(one.reward)}`) : null,
      " ",
      h("span", { class: "said" }, firstWords(one)),
    ),
  );
}

function trouble(one) {
  return [...one.tool_calls, ...one.tool_results].find((of) => of.status !== "ok")?.status;
}

// What a turn is about: the tools it names, or its first words.
export function firstWords(one) {
  const named = [...one.tool_calls, ...one.tool_results].map((of) => of.name).filter(Boolean);
  if (named.length) return named.join(", ").slice(0, WORDS);
  const text = one.text.slice(0, 4 * WORDS).replace(/\s+/g, " ").trim();
  return text.length > WORDS ? `${text.slice(0, WORDS)}\u2026` : text;
}
