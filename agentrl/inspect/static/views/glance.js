// The first question of whoever opens a run: is it learning, is it healthy, where do time and
// tokens go. One answer each; it leads to the part of the page that has the rest.

import { h } from "../dom.js";
import { inSigns, num, percent, plural, seconds, signed, words } from "../format.js";
import { go } from "../router.js";
import { exampleAddress, exampleText } from "./hacking/example.js";
import { fateText, stages } from "./ledger.js";
import { changeLevel, intervalText } from "./tasks/change_text.js";
import { stepsName } from "./tasks/score_cell.js";

export function glance(run, brief) {
  const answers = [learning(run, brief), health(run), hacking(run), time(run), tokens(run)].filter(
    Boolean,
  );
  return h(
    "section",
    { class: "glance", "aria-label": "At a glance" },
    answers.map(({ name, level, big, small, to, view, example }) => [
      h(
        "button",
        {
          class: `card ${level ?? ""}`,
          "data-item": "",
          "data-key": `glance ${name}`,
          onclick: () =>
            view
              ? go(view, { run: run.id })
              : document.getElementById(to)?.scrollIntoView({ block: "start" }),
        },
        h("span", { class: "note" }, name),
        h("b", {}, big),
        h("span", { class: "note" }, small),
        // A button holds no link: this one lies over its lower end.
        example && h("span", { class: "room", "aria-hidden": "true" }, exampleText(example)),
      ),
      example && exampleLink(run, example),
    ]).map((card) => h("div", { class: "at" }, card)),
  );
}

function exampleLink(run, example) {
  const to = exampleAddress(run.id, example);
  return h("a", { class: "example", href: to, "data-key": "glance example" }, exampleText(example));
}

function learning(run, brief) {
  const answer = { name: "Is it learning?", to: "dashboard-title" };
  const trend = run.reward_moved && rewardTrend(run.reward_moved);
  const own = run.evals[brief.score];
  const last = own ? own.score.length - 1 : -1;
  if (last < 1) {
    const small = `${trend ? `${trend.text}; ` : ""}no second evaluation to compare with`;
    return { ...answer, level: trend?.level ?? "", big: trend?.ends ?? "Too early", small };
  }
  const [before, after] = [own.score[0], own.score[last]];
  return {
    ...answer,
    level: changeLevel(own.change),
    big: `${num(before)} \u2192 ${num(after)}`,
    small: `score of ${brief.score}${changeText(own.change)}${trend ? `; ${trend.text}` : ""}`,
  };
}

// The interval of the difference by task, as `agentrl train` prints it: the intervals of two scores
// may overlap although nearly every task has gained.
function changeText(change) {
  if (!change) return "";
  const ends = change.low === null ? "" : ` [${signed(change.low)}, ${signed(change.high)}]`;
  return `, ${signed(change.mean)}${ends} by task over ${plural(change.tasks, "task")}`;
}

// As the view of hacking has it: one window, one interval for all who say whether the reward rose.
function rewardTrend({ change, first, last, start_steps: from, end_steps: to }) {
  if (!change) {
    const ends = `training reward ${num(first)} \u2192 ${num(last)}`;
    return { level: "", ends, text: `${ends}, too few steps to compare` };
  }
  const level = changeLevel(change);
  const ends = `training reward ${num(change.start)} \u2192 ${num(change.end)}`;
  const sure = { good: "it rose", fail: "it fell" }[level];
  const verdict = sure ?? (change.gain > 0 ? "a rise that is not certain" : "no rise");
  const gain = intervalText({ ...change, mean: change.gain });
  const over = `${stepsName(from)} against ${stepsName(to)}, each step with its own tasks`;
  return { level, ends, text: `${ends}, ${gain}: ${verdict} (${over})` };
}

function health(run) {
  const count = (status) => run.verdicts.filter((one) => one.status === status);
  const [fail, warn, fine] = [count("fail"), count("warn"), count("ok")];
  const answer = { name: "Is it healthy?", to: "findings-title" };
  const first = run.causes[0]?.detector;
  const worst = run.verdicts.find((one) => one.detector === first);
  if (worst) {
    const big = [fail.length && `${fail.length} fail`, warn.length && `${warn.length} warn`];
    const more = fail.length + warn.length - 1;
    return {
      ...answer,
      level: fail.length ? "fail" : "warn",
      big: big.filter(Boolean).join(", "),
      small: inSigns(worst.title) + (more ? `; and ${more} more` : ""),
    };
  }
  if (!fine.length) return { ...answer, big: "Too early", small: "no detector has enough data yet" };
  const open = count("unknown").length;
  return {
    ...answer,
    level: fine.length > open ? "good" : "",
    big: "Nothing found",
    small: open
      ? `by ${fine.length} of ${fine.length + open} detectors; ${open} lack data so far`
      : `by all ${fine.length} detectors`,
  };
}

function hacking(run) {
  if (!run.hacking) return null;
  const { level, word, headline, untested, example, paid_wrong: paid } = run.hacking;
  const apart =
    paid &&
    `${num(paid.wrong)} paid and wrong, ${num(paid.unpaid)} right and not paid in all training steps.`;
  return {
    name: "Is the reward hacked?",
    view: "hacking",
    level: level === "ok" ? "good" : level === "unknown" ? "" : level,
    big: word,
    small: [inSigns(headline), apart && ` ${apart}`, untested && h("span", { class: "untested" }, untested)],
    example,
  };
}

function time(run) {
  const parts = stages(run.timing);
  const answer = { name: "Where does time go?", to: "time-title" };
  const sum = parts.reduce((a, part) => a + part.value, 0);
  if (!sum) return { ...answer, big: "Not logged", small: "" };
  const speed = run.metrics["perf/tokens_per_second"]?.values.at(-1);
  return {
    ...answer,
    big: `${percent(parts[0].value / sum)} in ${parts[0].name}`,
    small: `of ${seconds(sum)}${speed === undefined ? "" : `; ${num(speed)} tokens per second in the last step`}`,
  };
}

function tokens(run) {
  const fates = Object.entries(run.waste.tokens ?? {})
    .map(([name, one]) => [name, one.values.reduce((a, b) => a + (b ?? 0), 0)])
    .sort((a, b) => b[1] - a[1]);
  const sum = fates.reduce((a, [, value]) => a + value, 0);
  const answer = { name: "Which tokens are trained on?", to: "waste-title" };
  if (!sum) return { ...answer, big: "Not logged", small: "" };
  const trained = fates.find(([name]) => name === "trained")?.[1] ?? 0;
  const lost = fates.filter(([name, value]) => name !== "trained" && value > 0);
  const why = lost.map(([name, value]) => `${percent(value / sum)} ${words(name)}: ${fateText(name)}`);
  return {
    ...answer,
    big: `${percent(trained / sum)} of sampled tokens`,
    small: `${why.join(" ") || "Nothing lost."} Prompt and environment are never trained on.`,
  };
}
