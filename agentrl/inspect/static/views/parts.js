// Small things several views show.

import { h } from "../dom.js";
import { num, plural, signed, words } from "../format.js";

const STATES = { running: "good", paused: "warn", finished: "accent", stopped: "warn" };

// `why` says it better than the state where a run ended before its last step.
export function statePill(state, why = "") {
  return state ? h("span", { class: `pill ${why ? "warn" : (STATES[state] ?? "")}` }, brief(why) || state) : null;
}

// Why a run that ended by itself did so before all of its steps.
export function early({ state, ended, steps, planned_steps: planned }) {
  return state === "finished" && planned > steps ? ended : "";
}

// A rule that ended a run gives its evidence, too: the first words have room here.
function brief(why) {
  return why.length > 40 ? `${why.slice(0, 40)}\u2026` : why;
}

// "6 of 26 steps"; a run that has done all of them, or whose plan is not known, "6 steps".
export function stepsText(done, planned) {
  return planned && done < planned
    ? `${num(done)} of ${plural(planned, "step")}`
    : plural(done, "step");
}

// A run that waits for a person says so before anything else.
export function pauseNotice(pause) {
  if (!pause) return null;
  return h(
    "p",
    { class: "pause", role: "status" },
    `Paused after step ${num(pause.step)} by ${pause.why}. Answer with `,
    h("code", {}, pause.answer),
    " (or stop).",
  );
}

export function scoreText({ score, score_before: before, score_after: after }) {
  const known = (value) => value !== null && value !== undefined;
  if (!known(before) && !known(after)) return null;
  return h(
    "p",
    { class: "score", title: "Score of the first evaluation on this dataset, and of the latest" },
    h("span", { class: "note" }, `${score} `),
    num(before),
    known(after) && [h("span", { class: "note" }, " \u2192 "), h("b", {}, num(after))],
  );
}

// What could not be read or judged; nothing is ever left out silently.
export function notes(list) {
  if (!list?.length) return null;
  const texts = h("ul", {}, list.map((text) => h("li", {}, text)));
  if (list.length <= 3) return h("div", { class: "notes" }, texts);
  return h(
    "details",
    { class: "notes", "data-key": "notes" },
    h("summary", {}, `${list.length} notes on what is shown`),
    texts,
  );
}

// Whether every score of these rows is their reward: then one column shows both.
export function sameScore(pairs) {
  return pairs.length > 0 && pairs.every(([reward, score]) => score !== null && score === reward);
}

export const REWARD_AND_SCORE = "reward = score";

export function reward(value) {
  const level =
    value === null || value === undefined
      ? ""
      : value > 0
        ? "good-ink"
        : value < 0
          ? "fail-ink"
          : "note";
  return h("span", { class: `reward ${level}` }, num(value));
}

// Lowest and highest end of a bar for these values: 0 and 1 are always on it, so that half a bar is
// half of the reward.
export function barRange(values) {
  return [Math.min(0, ...values), Math.max(1, ...values)];
}

// A bar from zero: to the right for what is above it, to the left for what is below.
export function meter(value, [low, high]) {
  const from = (Math.min(0, value ?? 0) - low) / (high - low);
  const share = Math.abs(value ?? 0) / (high - low);
  const cls = value < 0 ? "meter negative" : "meter";
  return h("span", { class: cls, vars: { "--from": from, "--share": share } }, h("i"));
}

// How a rollout can end, by name: `{mark, meaning, ...}` as the server's table of endings has them.
let ends = {};
const LEVELS = { done: "", limit: "warn", fault: "fail" };

export function setEndings(table) {
  ends = table;
}

export function endings() {
  return Object.keys(ends);
}

export function termination(name, detail) {
  const title = [ends[name]?.meaning, detail].filter(Boolean).join("\n");
  return h("span", { class: `pill ${levelOf(name)}`, title: title || null }, words(name));
}

export function endingMeaning(name) {
  return ends[name]?.meaning ?? "";
}

export function terminationLevel(name) {
  return levelOf(name) || "good";
}

// Rollouts among counts by ending that ended as they should.
export function endedWell(counts) {
  const well = Object.keys(counts).filter((name) => ends[name]?.mark === "done");
  return well.reduce((sum, name) => sum + counts[name], 0);
}

// How the rollouts of a group ended, as shares of a bar and in words.
export function endingsBar(counts, total) {
  const parts = Object.entries(counts)
    .filter(([, count]) => count > 0)
    .sort((a, b) => b[1] - a[1]);
  const text = parts.map(([name, count]) => `${words(name)} ${count}`).join(", ");
  return h(
    "span",
    { title: text },
    h(
      "span",
      { class: "spread", "aria-hidden": "true" },
      parts.map(([name, count]) =>
        h("i", { class: terminationLevel(name), vars: { "flex-grow": count / total } }),
      ),
    ),
    h("span", { class: "note" }, ` ${text}`),
  );
}

function levelOf(name) {
  return LEVELS[ends[name]?.mark] ?? "";
}

// A number as a bar to the left or right of a middle line, so that columns can be compared.
export function around(value, size) {
  if (value === null || value === undefined) return h("span", { class: "note" }, num(null));
  const share = Math.min(1, Math.abs(value) / (size || 1));
  return h(
    "span",
    { class: "around" },
    h("span", { class: `track ${value < 0 ? "below" : "above"}`, vars: { "--share": share } }),
    signed(value),
  );
}

export function status(name) {
  if (!name) return null;
  return h("span", { class: `pill ${name === "ok" ? "good" : "fail"}` }, words(name));
}

// Links to the same kind of place before and after, with a list of all in between.
export function stepper({ label, at, all, to, name = (one) => one }) {
  const here = all.indexOf(at);
  const link = (by, text, what) => {
    const target = here < 0 ? undefined : all[here + by];
    return target === undefined
      ? h("span", { class: "button", "aria-disabled": "true" }, text)
      : h(
          "a",
          { class: "button", href: to(target), "aria-label": `${what} ${label}`, "data-key": what },
          text,
        );
  };
  const box = h(
    "select",
    {
      "aria-label": label,
      "data-key": `pick ${label}`,
      onchange: () => (location.hash = to(all[box.selectedIndex])),
    },
    all.map((one, i) => h("option", { selected: i === here }, name(one))),
  );
  return h(
    "span",
    { class: "stepper" },
    link(-1, "\u2039", "previous"),
    box,
    link(1, "\u203a", "next"),
  );
}
