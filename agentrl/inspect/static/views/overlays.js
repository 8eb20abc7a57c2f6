// What can be laid over the tokens, and how a value becomes one of a few colours. No page.

const LEVELS = 8;

// kind: "named" (codes with a legend), "low" (the lower the stronger), "high", "both" (around
// `middle`), "steps" (whole numbers, such as versions).
export const OVERLAYS = [
  {
    id: "why",
    name: "Mask and reason",
    kind: "named",
    what: "Whether the token is in the loss, and if not, why not",
  },
  {
    id: "rollout_log_prob",
    name: "Sampler log-prob",
    kind: "low",
    unit: "nats",
    what: "Log-probability that the sampler computed when it drew the token",
  },
  {
    id: "old_log_prob",
    name: "Trainer log-prob",
    kind: "low",
    unit: "nats",
    what: "The trainer's log-probability before the first update of the step",
  },
  {
    id: "log_prob",
    name: "Trainer log-prob, last update",
    kind: "low",
    unit: "nats",
    what: "The trainer's log-probability in the last update with this token",
  },
  {
    id: "gap",
    name: "Trainer - sampler",
    kind: "both",
    middle: 0,
    unit: "nats",
    what:
      "Trainer log-prob - sampler log-prob before any update: 0 if both agree; " +
      "kept in steps of 0.00012",
  },
  {
    id: "entropy",
    name: "Entropy",
    kind: "high",
    unit: "nats",
    what: "Entropy of the distribution that the token was drawn from",
  },
  {
    id: "advantage",
    name: "Advantage",
    kind: "both",
    middle: 0,
    what: "Positive: training raises the probability; negative: training lowers it",
  },
  {
    id: "ratio",
    name: "Importance ratio and clip",
    kind: "both",
    middle: 1,
    what: "Current probability / old probability, as in the loss; algorithm.old_log_probs says whose old one; underlined where the ratio was clipped",
  },
  {
    id: "correction",
    name: "Sampler correction",
    kind: "both",
    middle: 1,
    what: "Importance weight between trainer and sampler; 1 without one",
  },
  { id: "loss", name: "Loss", kind: "both", middle: 0, what: "Contribution of the token to the loss" },
  { id: "version", name: "Policy version", kind: "steps", what: "Policy version (step) that sampled the token" },
];

export function present(overlay, data) {
  const column = overlay.id === "why" ? data.why?.codes : data[overlay.id];
  return Boolean(column?.some((value) => value !== null));
}

// {classes: [class of each token], legend: [{cls, text, count?}], strength: [0..1 of each token]}
export function paintOf(overlay, data) {
  if (overlay.kind === "named") return named(data.why);
  const values = data[overlay.id];
  if (overlay.kind === "steps") return stepped(values);
  const size = reach(values, overlay.middle ?? 0);
  const place = (value) => levelOf(value, overlay, size);
  const classes = values.map((value) => (value === null ? "" : place(value)));
  const strength = values.map((value) =>
    value === null ? 0 : Math.min(1, Math.abs(value - (overlay.middle ?? 0)) / size),
  );
  return { classes, strength, legend: scaleLegend(overlay, size) };
}

// The size at which the colour is full: only one value in fifty is beyond it, so that a single
// outlier does not leave all others pale. The pale ones are found by the list of outliers.
export function reach(values, middle) {
  const sizes = values
    .filter((value) => value !== null)
    .map((value) => Math.abs(value - middle))
    .sort((a, b) => a - b);
  return sizes[Math.floor(0.98 * (sizes.length - 1))] || sizes.at(-1) || 1;
}

function levelOf(value, { kind, middle = 0 }, size) {
  const share = Math.min(1, Math.abs(value - middle) / size);
  if (kind !== "both") return share < 0.02 ? "q0" : `q${Math.max(1, Math.round(share * LEVELS))}`;
  const level = Math.round((share * LEVELS) / 2);
  if (level === 0) return "q0";
  return `${value > middle ? "p" : "n"}${level}`;
}

function scaleLegend({ kind, middle = 0 }, size) {
  if (kind === "both") {
    return [-4, -3, -2, -1, 0, 1, 2, 3, 4].map((level) => ({
      cls: level === 0 ? "q0" : `${level > 0 ? "p" : "n"}${Math.abs(level)}`,
      value: middle + (level / 4) * size,
    }));
  }
  const sign = kind === "low" ? -1 : 1;
  return [0, 1, 2, 3, 4, 5, 6, 7, 8].map((level) => ({
    cls: `q${level}`,
    value: (sign * level * size) / LEVELS,
  }));
}

const REASONS = [
  ["trained", "w-trained"],
  ["prompt", "w-prompt"],
  ["environment", "w-env"],
  ["reply prefix", "w-prefix"],
  ["zero advantage", "w-dull"],
  ["not in a batch", "w-eval"],
  ["truncated", "w-cut"],
  ["stale", "w-stale"],
  ["dropped", "w-dropped"],
  ["masked", "w-cut"],
];

export function reasonClass(text) {
  return REASONS.find(([start]) => text.startsWith(start))?.[1] ?? "w-dropped";
}

function named({ codes, legend }) {
  const cls = legend.map(reasonClass);
  const counts = legend.map(() => 0);
  for (const code of codes) counts[code]++;
  return {
    classes: codes.map((code) => cls[code]),
    strength: codes.map((code) => (cls[code] === "w-trained" ? 1 : 0)),
    legend: legend
      .map((text, i) => ({ cls: cls[i], text, count: counts[i] }))
      .filter((one) => one.count)
      .sort((a, b) => b.count - a.count),
  };
}

function stepped(values) {
  const found = [...new Set(values.filter((value) => value !== null))].sort((a, b) => a - b);
  const at = new Map(found.map((value, i) => [value, `v${Math.min(7, found.length - 1 - i)}`]));
  return {
    classes: values.map((value) => (value === null ? "" : at.get(value))),
    strength: values.map((value) =>
      value === null
        ? 0
        : 0.3 + (0.7 * (found.length - 1 - found.indexOf(value))) / Math.max(1, found.length - 1),
    ),
    legend: found.map((value) => ({
      cls: at.get(value),
      text: `policy of step ${value}`,
      count: values.filter((one) => one === value).length,
    })),
  };
}

// The tokens furthest from the middle, strongest first: what to look at in a long row.
export function outliers(overlay, data, most = 12) {
  if (overlay.kind === "named" || overlay.kind === "steps") return [];
  const middle = overlay.middle ?? 0;
  const values = data[overlay.id];
  const found = [];
  values.forEach((value, i) => value !== null && found.push([Math.abs(value - middle), i]));
  return found
    .sort((a, b) => b[0] - a[0] || a[1] - b[1])
    .slice(0, most)
    .map(([, i]) => i);
}
