// Curves of a run whose rollouts have several turns or tools: turns, calls, their errors, endings.

import { h } from "../../dom.js";
import { words } from "../../format.js";
import { stackChart } from "../../stack.js";
import { terminationLevel } from "../parts.js";

const BY_NAME = /^tools\/by_name\/(.+)\/([^/]+)$/;
const ENDING = /^rollout\/termination\/(.+)$/;
const COLORS = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"];
const MOST_TOOLS = 8;

// Cards as `curveCard` takes them; empty for a run of single turns without tools.
export function agentCurves(run) {
  const has = (name) => run.metrics[name]?.values.some((value) => value > 0);
  const tools = callsByTool(run);
  if (!has("tools/call_frequency") && !tools.length && !severalTurns(run)) return [];
  const one = (title, names, what, unit = "") => {
    const series = names
      .filter(([name]) => run.metrics[name])
      .map(([name, label], i) => ({ name: label, metric: name, color: COLORS[i], ...run.metrics[name] }));
    return series.length > 0 && { title, unit, what, series };
  };
  return [
    one("Turns of a rollout", [["num_turns/mean", "turns"]], "Assistant turns, mean over the rollouts of a step."),
    one("Tool calls of a rollout", [["tools/call_frequency", "calls"]], "Mean over the rollouts of a step."),
    one(
      "Failed tool calls",
      [
        ["tools/failure_frequency", "tool error"],
        ["tools/parse_error_frequency", "not parsed"],
      ],
      "Tool error: results that are not ok, as a share of all results. Not parsed: as a share of all calls.",
      "share",
    ),
    tools.length > 1 && {
      title: "Calls by tool",
      unit: "",
      what: "Calls in a step.",
      series: tools.map((tool) => ({ ...tool, values: tool.calls })),
    },
    tools.length > 0 && {
      title: "Tool errors by tool",
      unit: "share",
      what: "Results of the tool that are not ok, as a share of its results.",
      series: tools.map((tool) => ({ ...tool, values: tool.errors })),
    },
  ].filter(Boolean);
}

function severalTurns(run) {
  return run.metrics["num_turns/mean"]?.values.some((value) => value > 1);
}

// The tools that are called most: [{name, color, steps, calls, errors}].
function callsByTool(run) {
  const tools = new Map();
  for (const [name, { steps, values }] of Object.entries(run.metrics)) {
    const found = name.match(BY_NAME);
    if (!found) continue;
    const [, tool, status] = found;
    if (!tools.has(tool)) tools.set(tool, new Map());
    const counts = tools.get(tool);
    steps.forEach((step, i) => {
      const [all, bad] = counts.get(step) ?? [0, 0];
      const more = values[i] ?? 0;
      counts.set(step, [all + more, bad + (status === "ok" ? 0 : more)]);
    });
  }
  const total = (counts) => [...counts.values()].reduce((sum, [all]) => sum + all, 0);
  return [...tools]
    .sort(([, a], [, b]) => total(b) - total(a))
    .slice(0, MOST_TOOLS)
    .map(([name, counts], i) => {
      const steps = [...counts.keys()].sort((a, b) => a - b);
      return {
        name,
        color: COLORS[i],
        steps,
        calls: steps.map((step) => counts.get(step)[0]),
        errors: steps.map((step) => {
          const [all, bad] = counts.get(step);
          return all ? bad / all : null;
        }),
      };
    });
}

function between({ steps, values }, first, last) {
  const kept = steps.map((_, i) => i).filter((i) => steps[i] >= first && steps[i] <= last);
  return { steps: kept.map((i) => steps[i]), values: kept.map((i) => values[i]) };
}

// How rollouts ended, as a share of each step; null where all ended in one way.
export function endingsCard(run, open, zoom) {
  const [first, last] = zoom ?? [-Infinity, Infinity];
  const found = Object.entries(run.metrics)
    .map(([name, curve]) => ({ name: name.match(ENDING)?.[1], ...between(curve, first, last) }))
    .filter((one) => one.name && one.values.some((value) => value > 0));
  if (found.length < 2) return null;
  const total = (one) => one.values.reduce((a, b) => a + (b ?? 0), 0);
  const parts = found
    .sort((a, b) => total(b) - total(a))
    .map((one, i) => ({ ...one, name: words(one.name), ending: one.name, color: COLORS[Math.min(i, 7)] }));
  return h(
    "article",
    { class: "curve-card card", "data-item": "" },
    h("header", {}, h("h3", {}, "How rollouts end")),
    stackChart({ parts, share: true, label: "Share of rollouts by ending and step", height: 132, open }),
    h(
      "ul",
      { class: "names" },
      parts.map((one) =>
        h(
          "li",
          {},
          h("i", { class: `swatch ${one.color}` }),
          one.name,
          terminationLevel(one.ending) === "fail" ? h("span", { class: "fail-ink" }, " infrastructure") : "",
        ),
      ),
    ),
  );
}
