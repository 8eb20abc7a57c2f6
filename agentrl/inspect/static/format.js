// Numbers as a person reads them: three significant digits, zeros at the end included, so that
// 0.400 stands beside 0.322; scores from 0 to 1 as the metrics have them, shares in percent.
// Missing is a dash, never a zero.

export const MISSING = "\u2013";

export function num(value, digits = 3) {
  return plain(value, digits).replace(/^-/, "\u2212");
}

function plain(value, digits) {
  if (value === null || value === undefined || Number.isNaN(value)) return MISSING;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en");
  if (size >= 1e7 || size < 1e-3) return Number(value.toPrecision(digits)).toExponential();
  if (size >= 1000) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  const text = value.toPrecision(digits);
  return text.includes("e") ? String(Number(text)) : text;
}

// Of limits and times, which are given and not measured to the last digit: 0.3, 5.1.
export function short(value, digits = 3) {
  const text = num(value, digits);
  return /^\S*\.\d+$/.test(text) ? text.replace(/\.?0+$/, "") : text;
}

// In a column all values have the same digits, so that they can be compared at a glance.
export function column(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return MISSING;
  return Math.abs(value) < 100 ? value.toFixed(3).replace(/^-/, "\u2212") : num(value);
}

// A share from 0 to 1 as people read it: 72 %, 5.26 %.
export function percent(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return MISSING;
  return value > 0 && value < 5e-4 ? "<\u00a00.1\u00a0%" : `${short(100 * value)}\u00a0%`;
}

// The difference of two shares, which is no share.
export function points(value) {
  const text = short(100 * value);
  return `${value > 0 ? "+" : ""}${text}\u00a0points`;
}

// Format of a metric by its unit: `percent` has the unit of a share in it.
export function formatOf(unit) {
  return unit === "share" ? percent : num;
}

// What a range with open ends says: `0.05 to 3`, `above 6`; empty for no bounds at all.
export function bounds([low, high], show = short) {
  if (low === null && high === null) return "";
  if (low === null) return `up to ${show(high)}`;
  if (high === null) return `from ${show(low)}`;
  return `${show(low)} to ${show(high)}`;
}

export function signed(value, digits = 3) {
  return value > 0 ? `+${num(value, digits)}` : num(value, digits);
}

// Numbers in a sentence of the server with the signs of the page: one arrow, one minus.
export function inSigns(text) {
  return text
    .replaceAll("->", "\u2192")
    .replace(/(^|[\s[(])-(?=\.?\d|\s)/g, "$1\u2212");
}

// Seconds, name, digits, and the time from which the next unit is read more easily.
const UNITS = [
  [0.001, "ms", 2, 0.0995],
  [1, "s", 3, 100],
  [60, "min", 2, 6000],
  [3600, "h", 3, Infinity],
];

export function seconds(value) {
  return value === 0 ? "0\u00a0s" : secondsLike([value])(value);
}

// Times that stand beside each other are in one unit, that of the longest: gives their format.
export function secondsLike(values) {
  const longest = Math.max(0, ...values);
  const [size, unit, digits] = UNITS.find(([, , , end]) => longest < end) ?? UNITS[1];
  return (value) =>
    value === null || value === undefined ? MISSING : `${short(value / size, digits)}\u00a0${unit}`;
}

export function when(stamp) {
  if (!stamp) return "";
  const date = new Date(
    typeof stamp === "number" ? stamp * 1000 : stamp.replace(/\+(\d\d)(\d\d)$/, "+$1:$2"),
  );
  if (Number.isNaN(date.getTime())) return String(stamp);
  return date.toLocaleString("en-GB", {
    year: "numeric",
    month: "short",
    day: "numeric",
    hour: "2-digit",
    minute: "2-digit",
  });
}

export function plural(count, word) {
  return `${num(count)} ${word}${count === 1 ? "" : "s"}`;
}

// `step-7/0003-gcd-0-3/2` ends in what tells siblings apart.
export function lastPart(id) {
  return String(id).split("/").at(-1);
}

export function words(name) {
  return String(name).replaceAll("_", " ");
}

// `eval/held out` as a heading says it.
export function kindName(kind) {
  return kind.replace(/^eval\//, "evaluation ");
}

// An answer that goes on from a fence in the prompt ends in one that nothing opens.
export function withoutFence(text) {
  return (text.match(/^\s*```/gm) ?? []).length % 2 ? text.replace(/\s*```\s*$/, "") : text;
}
