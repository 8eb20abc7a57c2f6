// Arithmetic of charts: scales, ticks, and which points to draw. No page, no clock.

export function scale(from, to, low, high) {
  const span = to - from || 1;
  return (value) => low + ((value - from) / span) * (high - low);
}

// The values' own range, widened to a limit that is close enough to matter: a limit far away would
// press the curve flat, and the curve is what is being read.
export function domain({ series, healthy, red, zero = false }) {
  const values = series
    .flatMap((one) => [...one.values, ...(one.low ?? []), ...(one.high ?? [])])
    .filter(Number.isFinite);
  if (!values.length) return [0, 1];
  let low = values.reduce((a, b) => Math.min(a, b));
  let high = values.reduce((a, b) => Math.max(a, b));
  if (zero) low = Math.min(0, low);
  // Rounding errors of a constant are not a curve: they are drawn as the straight line they are.
  const least = 1e-3 * Math.max(Math.abs(low), Math.abs(high)) || 1;
  if (high - low < least) {
    const room = 0.1 * Math.max(Math.abs(low), Math.abs(high)) || 0.5;
    [low, high] = [low - room, high + room];
  }
  const span = high - low;
  for (const limit of [...(healthy ?? []), ...(red ?? [])]) {
    if (limit === null) continue;
    if (limit > high && limit - high < 0.8 * span) high = limit + 0.08 * span;
    if (limit < low && low - limit < 0.8 * span) low = limit - 0.08 * span;
  }
  const pad = 0.07 * (high - low);
  // What is never negative is not given room below zero.
  const positive = values.every((value) => value >= 0);
  return [positive ? Math.max(0, low - pad) : low - pad, high + pad];
}

export function ticks(low, high, about) {
  const raw = (high - low) / about;
  if (!(raw > 0)) return [low];
  const size = 10 ** Math.floor(Math.log10(raw));
  const at = (step) => {
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-12); i++) {
      found.push(Number((i * step).toPrecision(12)));
    }
    return found;
  };
  const sizes = [10, 5, 2, 1, 0.5].map((factor) => factor * size);
  const first = sizes.findLastIndex((step) => step >= raw);
  // One line alone gives no scale.
  return at(sizes.slice(first).find((step) => at(step).length > 1) ?? sizes.at(-1));
}

// Ticks as text: as many digits as tell one from the next, and no more.
export function tickTexts(values) {
  const size = Math.max(...values.map(Math.abs), 0);
  const minus = (text) => text.replace(/^-/, "\u2212");
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) {
    return values.map((value) =>
      value === 0 ? "0" : minus(Number(value.toPrecision(3)).toExponential()),
    );
  }
  if (values.length === 1) return values.map((value) => minus(String(Number(value.toPrecision(3)))));
  const step = Math.abs(values[1] - values[0]);
  const digits = step ? Math.min(8, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))) : 0;
  return values.map((value) =>
    minus(
      value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }),
    ),
  );
}

export function edges(first, last) {
  return first === last ? [first] : [first, last];
}

export function nearest(sorted, value) {
  let [low, high] = [0, sorted.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  const before = sorted[Math.max(0, low - 1)];
  return Math.abs(before - value) <= Math.abs(sorted[low] - value) ? before : sorted[low];
}

// [step, value] pairs to draw. Where there are more than the width can show, each pixel keeps its
// lowest and highest value, so that no spike is lost.
export function points(steps, values, width) {
  const all = steps.map((step, i) => [step, values[i]]).filter((pair) => Number.isFinite(pair[1]));
  if (all.length <= 2 * width) return all;
  const kept = [];
  const size = all.length / width;
  for (let pixel = 0; pixel < width; pixel++) {
    const part = all.slice(Math.floor(pixel * size), Math.floor((pixel + 1) * size));
    if (!part.length) continue;
    const low = part.reduce((a, b) => (b[1] < a[1] ? b : a));
    const high = part.reduce((a, b) => (b[1] > a[1] ? b : a));
    kept.push(...(low[0] <= high[0] ? [low, high] : [high, low]));
  }
  return kept;
}

// Averages `values` over at most `most` stretches of equal length.
export function pool(values, most) {
  if (values.length <= most) return values;
  return Array.from({ length: most }, (_, i) => {
    const part = values.slice(
      Math.floor((i * values.length) / most),
      Math.floor(((i + 1) * values.length) / most),
    );
    return part.reduce((a, b) => a + (b ?? 0), 0) / part.length;
  });
}

// The exponential moving average, corrected for its start: each value weighs `weight` times less
// than the one after it. What is missing stays missing.
export function ema(values, weight) {
  let [sum, mass] = [0, 0];
  return values.map((value) => {
    if (!Number.isFinite(value)) return null;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

// The value of a curve that moves less than anyone could see; null for one that does, or that is
// too short to say.
export function constantOf(values) {
  const found = values.filter(Number.isFinite);
  if (found.length < 3) return null;
  const low = found.reduce((a, b) => Math.min(a, b));
  const high = found.reduce((a, b) => Math.max(a, b));
  return high - low <= 1e-4 * Math.max(Math.abs(low), Math.abs(high)) ? found.at(-1) : null;
}

// Where a step lies on an axis that is known at some steps: between two of them in proportion.
export function between(steps, values) {
  return (step) => {
    const last = steps.length - 1;
    const after = steps.findIndex((one) => one >= step);
    if (after === 0) return steps[0] > 0 ? (values[0] * Math.max(0, step)) / steps[0] : values[0];
    if (after < 0) return values[last];
    const share = (step - steps[after - 1]) / (steps[after] - steps[after - 1]);
    return values[after - 1] + share * (values[after] - values[after - 1]);
  };
}

// Values above zero on a logarithmic axis; null where there is none.
export function logDomain(series) {
  const values = series
    .flatMap((one) => [...one.values, ...(one.smooth ?? []), ...(one.low ?? []), ...(one.high ?? [])])
    .filter((value) => Number.isFinite(value) && value > 0);
  if (!values.length) return null;
  const low = values.reduce((a, b) => Math.min(a, b));
  const high = values.reduce((a, b) => Math.max(a, b));
  return high / low < 1.2 ? [low / 1.5, high * 1.5] : [low / 1.1, high * 1.1];
}

// Powers of ten, or where there are fewer than two of them 1, 2, 5 times these, and at most five.
export function logTicks(low, high) {
  const found = (factors) => {
    const marks = [];
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) {
      for (const factor of factors) {
        const value = Number((factor * 10 ** power).toPrecision(12));
        if (value >= low && value <= high) marks.push(value);
      }
    }
    return marks;
  };
  const marks = [[1], [1, 3], [1, 2, 5]].map(found).find((list) => list.length > 1);
  const every = Math.ceil((marks?.length ?? 0) / 4);
  return marks ? marks.filter((_, i) => i % every === 0) : ticks(low, high, 3);
}
