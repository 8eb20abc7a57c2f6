// Where the time went and what became of the tokens.

import { h } from "../dom.js";
import { num, seconds, words } from "../format.js";
import { shareBar, stackChart } from "../stack.js";
import { curveCard } from "./curve_card.js";

const COLORS = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"];
// Sums of other stages, and the clock.
const NOT_A_STAGE = new Set(["step", "elapsed"]);
const THROUGHPUT = ["perf/tokens_per_second", "train/tokens_per_second"];

// What the devices did: the first group of each card that a run has logged is drawn.
const MACHINE = [
  {
    title: "Compute",
    groups: [
      { unit: "share", note: "MFU: model FLOPs over the peak of the GPU", names: { "perf/mfu": "training" } },
      { unit: "TFLOP/s", note: "TFLOP/s of a device in training", names: { "perf/tflops_per_device": "training" } },
    ],
    what: "Floating-point operations of the updates by one formula; passes without a gradient do not count.",
  },
  {
    title: "Memory",
    groups: [
      {
        unit: "GB",
        note: "GPU memory, the most of each phase",
        names: {
          "perf/memory_peak_gb/train": "tensors, training",
          "perf/memory_peak_gb/rest": "tensors, rest of the step",
          "perf/memory_reserved_gb/train": "held by torch, training",
          "perf/memory_reserved_gb/rest": "held by torch, rest of the step",
        },
      },
      { unit: "GB", note: "memory of a training process", names: { "perf/host_peak_gb": "most so far" } },
    ],
    what: "What the trainer's process took on its device. Servers of their own are not in it.",
  },
  {
    title: "Utilization",
    groups: [
      {
        unit: "share",
        note: "share of the time that the GPU had work",
        names: { "perf/utilization/train": "training", "perf/utilization/rest": "rest of the step" },
      },
    ],
    what: "Read from the driver twice a second. A GPU that has work need not be well used: see MFU.",
  },
  {
    title: "Turns",
    groups: [
      {
        unit: "s",
        note: "trainer and servers of one GPU, in turn",
        names: {
          "sync/to_trainer_s": "to the trainer: servers to sleep, its state back",
          "sync/asleep_s": "servers asleep",
          "sync/wake_s": "to the servers: state aside, weights, awake",
        },
      },
    ],
    what: "Of a colocated run (runtime.colocated). sync/put_aside_bytes is what of the trainer was in main memory.",
  },
];

const FATES = {
  trained: ["c0", "In the loss of an update."],
  penalty_only: ["c5", "Zero advantage: only the KL or entropy term has a gradient."],
  zero_advantage: ["c7", "Zero advantage: all rewards of the group are equal, so there is no gradient."],
  filtered: ["c3", "Dropped by a filter of the config."],
  stale: ["c4", "Policy lag above the limit."],
  truncated: ["c1", "Truncated by a limit, and masked by the config."],
  aborted: ["c2", "Cancelled while in flight."],
  infrastructure: ["c6", "An engine, sandbox, environment or grader failed."],
};

// Why tokens are not trained on, in a sentence.
export function fateText(fate) {
  return FATES[fate]?.[1].replace(/^[A-Z][a-z ]+: /, "") ?? "";
}

const sum = (values) => values.reduce((a, b) => a + (b ?? 0), 0);

// Longest first.
export function stages(timing) {
  return Object.entries(timing)
    .filter(([name]) => !NOT_A_STAGE.has(name))
    .map(([name, one]) => ({
      name: words(name),
      steps: one.steps,
      values: one.values,
      value: sum(one.values),
    }))
    .sort((a, b) => b.value - a.value)
    .map((part, i) => ({ ...part, color: COLORS[Math.min(i, 7)] }));
}

export function timePanel(run, open) {
  const parts = stages(run.timing);
  const speeds = THROUGHPUT.filter((name) => run.metrics[name]).map((name, i) => ({
    name: name === THROUGHPUT[0] ? "whole step" : "training alone",
    color: COLORS[i],
    ...run.metrics[name],
  }));
  return h(
    "section",
    { class: "card" },
    h(
      "h2",
      { id: "time-title" },
      "Time by stage ",
      h("span", { class: "note" }, "seconds per step; stages may overlap"),
    ),
    parts.length
      ? [
          stackChart({ parts, label: "Seconds by stage and step", open, show: seconds }),
          shareBar({ parts, show: seconds, label: "Time by stage" }),
        ]
      : h("p", { class: "note" }, "No timing was logged."),
    speeds.length > 0 && [
      h("h2", { class: "gap" }, "Throughput"),
      curveCard({
        title: "Tokens per second",
        plain: true,
        series: speeds,
        steps: range(speeds),
        zero: true,
        height: 110,
        open,
        label: "Tokens per second by step",
        key: "chart throughput",
        what: "Sampled tokens over the time of the whole step, and over the time of the update alone.",
      }),
    ],
    MACHINE.map((card) => machineCard(card, run, open)),
  );
}

function machineCard({ title, groups, what }, run, open) {
  const group = groups.find(({ names }) => Object.keys(names).some((name) => run.metrics[name]));
  if (!group) return null;
  const series = Object.entries(group.names)
    .filter(([name]) => run.metrics[name])
    .map(([key, name], i) => ({ name, color: COLORS[i], ...run.metrics[key] }));
  const { unit, note } = group;
  const label = `${title} by step`;
  const key = `chart ${title.toLowerCase()}`;
  return curveCard({ title, note, what, unit, series, label, key, open, plain: true, steps: range(series), zero: true, height: 110 });
}

function range(series) {
  const steps = series.flatMap((one) => [one.steps[0], one.steps.at(-1)]);
  return [Math.min(...steps), Math.max(...steps)];
}

const untrained = (part) => part.fate !== "trained" && part.value > 0;
const said = (part) => `${part.name}: ${fateText(part.fate)}`;

export function wastePanel(run, open) {
  const parts = (unit) => {
    const known = Object.keys(FATES).filter((fate) => run.waste[unit]?.[fate]);
    const others = Object.keys(run.waste[unit] ?? {}).filter((fate) => !FATES[fate]);
    return [...known, ...others].map((fate) => ({
      fate,
      name: words(fate),
      color: FATES[fate]?.[0] ?? "c5",
      what: FATES[fate]?.[1],
      ...run.waste[unit][fate],
      value: sum(run.waste[unit][fate].values),
    }));
  };
  const [tokens, time] = [parts("tokens"), parts("seconds")];
  return h(
    "section",
    { class: "card" },
    h(
      "h2",
      { id: "waste-title" },
      "Waste ledger ",
      h("span", { class: "note" }, "what became of the sampled tokens"),
    ),
    sum(tokens.map((part) => part.value)) > 0
      ? [
          stackChart({
            parts: tokens,
            share: true,
            label: "Share of tokens by what became of them and step",
            open,
          }),
          h(
            "div",
            { class: "pair even" },
            h(
              "div",
              {},
              h("h3", {}, "Tokens"),
              shareBar({ parts: tokens, show: (value) => num(Math.round(value)), label: "Tokens by what became of them" }),
            ),
            h(
              "div",
              {},
              h("h3", {}, "Rollout-seconds, summed over parallel rollouts"),
              sum(time.map((part) => part.value)) > 0
                ? shareBar({ parts: time, show: seconds, label: "Seconds by what became of them" })
                : h("p", { class: "note" }, "Not logged."),
            ),
          ),
          h("ul", { class: "note" }, tokens.filter(untrained).map((part) => h("li", {}, said(part)))),
        ]
      : h(
          "p",
          { class: "note" },
          "This run did not log what became of its tokens.",
        ),
  );
}
