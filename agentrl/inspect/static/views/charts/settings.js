// How the curves of a run are drawn: smoothed or not, over which axis, which steps. All of it is in
// the address, so that a link shows what its sender saw.

import { num, seconds } from "../../format.js";
import { between } from "../../scale.js";

const MOST_SMOOTH = 0.99;
// With more steps than a card has pixels, the curve of single steps is an area: these are smoothed
// unless the address says otherwise.
const MANY_STEPS = 600;
const SMOOTH_MANY = 0.95;

// params: of the address. Gives {smooth, log, axis, zoom}, each within what is possible, and
// `usual`, the smoothing of an address that names none.
export function settingsOf(params, steps) {
  const usual = steps[1] - steps[0] > MANY_STEPS ? SMOOTH_MANY : 0;
  const smooth = Number(params.smooth ?? usual);
  const [from, to] = [Number(params.from), Number(params.to)];
  const zoomed = params.from && params.to && Number.isFinite(from) && from < to;
  return {
    smooth: smooth > 0 ? Math.min(MOST_SMOOTH, smooth) : 0,
    usual,
    log: params.log === "1",
    axis: params.axis ?? "step",
    zoom: zoomed ? [Math.max(from, steps[0]), Math.min(to, steps[1])] : null,
  };
}

export function toParams({ smooth, usual, log, axis, zoom }) {
  return {
    smooth: smooth === usual ? null : String(smooth),
    log: log ? "1" : null,
    axis: axis === "step" ? null : axis,
    from: zoom?.[0],
    to: zoom?.[1],
  };
}

// The axes that this run can be drawn over, by name: {name, at(step), text(value)}.
export function axesOf(run) {
  const axes = { step: { name: "step", at: (step) => step, text: num } };
  const elapsed = rising(run.metrics["timing_s/elapsed"]) ?? summed([run.metrics["timing_s/step"]]);
  if (elapsed) {
    axes.time = { name: "wall-clock", at: between(elapsed.steps, elapsed.values), text: seconds };
  }
  const fates = Object.values(run.waste.tokens ?? {});
  const tokens = summed(fates.length ? fates : [run.metrics["batch/tokens"]]);
  if (tokens) {
    axes.tokens = {
      name: "sampled tokens",
      at: between(tokens.steps, tokens.values),
      text: (value) => num(Math.round(value)),
    };
  }
  return axes;
}

// A clock that was set back, as after a rollback, would fold the curves.
function rising(curve) {
  if (!curve?.steps.length) return null;
  let high = 0;
  return { steps: curve.steps, values: curve.values.map((v) => (high = Math.max(high, v ?? 0))) };
}

function summed(curves) {
  const found = curves.filter((one) => one?.steps.length);
  if (!found.length) return null;
  const steps = [...new Set(found.flatMap((one) => one.steps))].sort((a, b) => a - b);
  const at = new Map(steps.map((step, i) => [step, i]));
  const values = new Array(steps.length).fill(0);
  for (const one of found) one.steps.forEach((step, i) => (values[at.get(step)] += one.values[i] ?? 0));
  let sum = 0;
  return { steps, values: values.map((value) => (sum += value)) };
}
