// Is the reward hacked? The detectors' answer first, then what a reader can check it by.

import { get } from "../../api.js";
import { h } from "../../dom.js";
import { column, inSigns, lastPart, num, signed, words } from "../../format.js";
import { go, href } from "../../router.js";
import { curveCard } from "../curve_card.js";
import { notes } from "../parts.js";
import { UNPAID, questions } from "../questions.js";
import { clusters } from "./clusters.js";
import { linker } from "./counts.js";
import { exampleAddress, exampleText } from "./example.js";
import { rewards } from "./rewards.js";

async function load(params, signal) {
  const { run, kind, step, among } = params;
  // Comparing 10^5 answers takes a while the first time; the rest of the page does not wait.
  const answer = await get("hacking", { run, kind, step }, signal);
  const alike =
    answer.rewards &&
    get("clusters", { run, kind, steps: among }, signal).then(
      (found) => ({ found }),
      (error) => ({ error }),
    );
  return { ...answer, alike };
}

function draw(data, params) {
  const { run } = params;
  const more = h("p", { hidden: true });
  return {
    title: `Is the reward of ${lastPart(run)} hacked?`,
    live: true,
    crumbs: [
      ["runs", href("runs")],
      [lastPart(run), href("run", { run })],
      ["hacking", null],
    ],
    up: href("run", { run }),
    node: h(
      "div",
      { class: "page hacking" },
      h("header", { class: "head" }, h("h1", {}, "Is the reward hacked?")),
      notes(data.notes),
      answer(data, more, run),
      charts(data, params),
      movements(data.parts),
      data.rewards && rewards(data.rewards, params),
      h(
        "section",
        { class: "card", "aria-label": "Questions to ask" },
        h("h2", {}, "Questions to ask"),
        questions(run, { oneNumber: data.one_number }),
      ),
      data.rewards && clusters(data, params, more),
    ),
  };
}

function answer(data, more, run) {
  const level = data.level === "ok" ? "good" : data.level;
  const linked = linker(data.links, run);
  return h(
    "section",
    { class: "card answer", "aria-label": "Answer" },
    h(
      "p",
      { class: "big" },
      h("span", { class: `pill ${level}` }, data.word),
      " ",
      linked(data.headline),
    ),
    h("p", {}, linked(data.more)),
    toOpen(data, run),
    data.paid_wrong && h("p", { class: "note" }, inSigns(data.paid_wrong.text)),
    open(data),
    more,
    data.signs.length > 0 &&
      h(
        "ul",
        { class: "signs" },
        data.signs.map((one) =>
          h(
            "li",
            {},
            h("span", { class: `pill ${one.status}` }, words(one.detector)),
            " ",
            inSigns(one.title),
            one.evidence.map((text) => h("div", { class: "note" }, inSigns(text))),
          ),
        ),
      ),
    h(
      "p",
      { class: "note" },
      "By the findings of agentrl doctor (the environment's score beside the reward, evaluations on tasks that are not trained on, texts), and by the count of answers that are paid and wrong.",
    ),
  );
}

// What the files of a run cannot say, whatever the answer is.
function open({ untested, unknown }) {
  const texts = [untested, ...unknown].filter(Boolean);
  return (
    texts.length > 0 && [
      h("h3", {}, "What cannot be known"),
      h("ul", { class: "untested" }, texts.map((text) => h("li", {}, text))),
    ]
  );
}

// The example to look at first, and the very rollouts that the sentence counts.
function toOpen({ example, paid_wrong: paid }, run) {
  const { reward_min, score_max, wrong, unpaid } = paid ?? { wrong: 0, unpaid: 0 };
  return h(
    "p",
    { class: "row" },
    example &&
      h("a", { href: exampleAddress(run, example), "data-key": "example" }, exampleText(example)),
    wrong > 1 &&
      h(
        "a",
        { href: href("find", { run, kind: "train", reward_min, score_max, sort: "-reward" }), "data-key": "paid and wrong" },
        `Find all ${num(wrong)} that were paid and are wrong`,
      ),
    unpaid > 0 &&
      h(
        "a",
        { href: href("find", { run, ...UNPAID }), "data-key": "right and not paid" },
        `Find all ${num(unpaid)} that are right and were not paid`,
      ),
  );
}

function charts(data, params) {
  const card = (name, title, what) => {
    const curves = data.curves[name];
    if (!curves.length) return null;
    const steps = curves.flatMap((one) => [one.steps[0], one.steps.at(-1)]);
    return curveCard({
      title,
      what,
      series: curves.map((one, i) => ({ ...one, color: `c${i % 8}` })),
      steps: [Math.min(...steps), Math.max(...steps)],
      zero: true,
      label: `${title} by step`,
      key: `hacking ${name}`,
      // The rewards of the step are counted below, where they are stored.
      open: (step) => {
        const all = data.rewards?.steps ?? [];
        if (!all.length) return;
        const at = all.filter((one) => one <= step).at(-1) ?? all[0];
        go("hacking", { ...params, step: at });
      },
    });
  };
  return h(
    "div",
    { class: "grid-charts" },
    card(
      "against",
      "Reward against score",
      "The score is the environment's own verdict; held-out scores are of tasks that are not trained on. A reward that rises alone is paid for something else. A click counts the rewards of that step.",
    ),
    card("parts", "Parts of the reward", "Means of the named parts that make up the reward."),
  );
}

function movements(parts) {
  if (!parts.length) return null;
  const gain = ({ change, over }) => {
    if (!change) return h("span", { class: "note" }, "too few steps");
    if (change.low === null)
      return [signed(change.gain), h("span", { class: "note" }, " too few rollouts for an interval")];
    const sure = change.low > 0 || change.high < 0;
    const ends = `[${signed(change.low)}, ${signed(change.high)}]`;
    return [
      h(sure ? "b" : "span", {}, signed(change.gain)),
      " ",
      h("span", { class: "note", title: `over ${over}` }, ends),
    ];
  };
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "What rose and what fell"),
    h(
      "p",
      { class: "note" },
      "Each step of training draws its own tasks, so few steps are compared by the means of their tasks; an evaluation has the same tasks each time and is compared task by task.",
    ),
    h(
      "table",
      { class: "tasks moved" },
      h(
        "thead",
        {},
        h("tr", {}, h("th", {}, ""), ["start", "end", "change, 95 %"].map((name) => h("th", { class: "n" }, name))),
      ),
      h(
        "tbody",
        {},
        parts.map((one) =>
          h(
            "tr",
            {},
            h("td", {}, one.name, one.paid === false && h("span", { class: "note" }, " not paid")),
            h("td", { class: "n" }, column(one.change?.start ?? one.first), meanOf(one.start_steps)),
            h("td", { class: "n" }, column(one.change?.end ?? one.last), meanOf(one.end_steps)),
            h("td", { class: "n" }, gain(one)),
          ),
        ),
      ),
    ),
  );
}

// A curve is compared by means over a few steps at either end: single steps are mostly noise.
function meanOf([from, to]) {
  const text = from === to ? ` step ${num(from)}` : ` mean of steps ${num(from)} to ${num(to)}`;
  return h("span", { class: "note" }, text);
}

export default { load, draw };
