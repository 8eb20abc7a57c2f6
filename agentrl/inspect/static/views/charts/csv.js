// The curves that are drawn, as a table with a row for each step.

import { ema } from "../../scale.js";

// series: [{name, steps, values}]; settings and axes as of `settings.js`.
export function csvOf(series, settings, axes) {
  const columns = [["step", (step) => step]];
  for (const name of Object.keys(axes).filter((name) => name !== "step")) {
    columns.push([{ time: "elapsed_s", tokens: "sampled_tokens" }[name], axes[name].at]);
  }
  for (const { name, steps, values } of series) {
    columns.push([name, lookUp(steps, values)]);
    if (settings.smooth) {
      const smooth = ema(values, settings.smooth);
      columns.push([`${name} (smoothed ${settings.smooth})`, lookUp(steps, smooth)]);
    }
  }
  const [low, high] = settings.zoom ?? [-Infinity, Infinity];
  const steps = [...new Set(series.flatMap((one) => one.steps))]
    .filter((step) => step >= low && step <= high)
    .sort((a, b) => a - b);
  const rows = steps.map((step) => columns.map(([, at]) => at(step) ?? ""));
  return [columns.map(([name]) => quoted(name)), ...rows].map((row) => `${row.join(",")}\r\n`).join("");
}

function lookUp(steps, values) {
  const at = new Map(steps.map((step, i) => [step, values[i]]));
  return (step) => at.get(step);
}

// A name that begins like a formula would be run by a spreadsheet; names come from the run.
function quoted(name) {
  const text = /^[=+\-@\t\r]/.test(name) ? `'${name}` : name;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function saveText(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
