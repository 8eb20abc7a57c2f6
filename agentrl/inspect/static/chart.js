// A small line chart: one metric over the steps, with its healthy band, its red zones, and what
// happened when. Charts of one page share a cursor; a click opens the step behind a point.

import { h, s } from "./dom.js";
import { formatOf, num } from "./format.js";
import { PAD, interact } from "./chart_input.js";
import { follow } from "./cursor.js";
import { domain, edges, ema, logDomain, logTicks, points, scale, tickTexts, ticks } from "./scale.js";

// spec: {series: [{name, steps, values, low?, high?, dashed?, color}], steps: [first, last], healthy?, red?,
//        marks?: [{step, level, text}], spans?: [{first, last, level}], label, height?, open(step)?,
//        look?: how it is drawn, as `views/charts/settings.js` gives it}
export function lineChart(spec) {
  const figure = h("div", { class: "chart", vars: { height: `${spec.height ?? 132}px` } });
  const [from, to] = spec.look?.zoom ?? spec.steps;
  spec = { ...spec, steps: [from, to], series: spec.series.map((one) => shown(one, spec, from, to)) };
  const all = [...new Set(spec.series.flatMap((one) => one.steps))].sort((a, b) => a - b);
  let width = 0;
  let draw = null;
  // Watching the size also draws it first, when the width is known.
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (!now || now === width) return;
    width = now;
    draw = paint(figure, spec, width, spec.height ?? 132);
  }).observe(figure);
  follow(figure, (step) => draw?.(step));
  if (all.length) interact(figure, spec, all, () => width);
  return figure;
}

// A curve as it is drawn: smoothed over all of its steps, and then only those between `from` and
// `to`.
function shown(one, { look }, from, to) {
  // Evaluations have an interval of their own, and are too few.
  const smooth = look?.smooth && !one.low ? ema(one.values, look.smooth) : null;
  const kept = one.steps.map((step, i) => i).filter((i) => one.steps[i] >= from && one.steps[i] <= to);
  const pick = (list) => list && kept.map((i) => list[i]);
  return {
    ...one,
    steps: pick(one.steps),
    values: pick(one.values),
    smooth: pick(smooth),
    low: pick(one.low),
    high: pick(one.high),
  };
}

// The scale of values, its marks, and what can be drawn on it: a logarithm has no zero.
function vertical(spec, height) {
  const range = spec.look?.log ? logDomain(spec.series) : null;
  if (!range) {
    // A rate is read against zero.
    const [y0, y1] = domain({ ...spec, zero: spec.zero || spec.unit === "share" });
    return { y: scale(y0, y1, height - PAD.bottom, PAD.top), y0, y1, marks: ticks(y0, y1, 3) };
  }
  const [y0, y1] = range;
  const line = scale(Math.log10(y0), Math.log10(y1), height - PAD.bottom, PAD.top);
  const marks = logTicks(y0, y1);
  return { y: (value) => line(Math.log10(Math.max(value, y0))), y0, y1, marks, log: true };
}

function paint(figure, spec, width, height) {
  const [x0, x1] = spec.steps;
  const axis = spec.look?.axis ?? { name: "step", at: (step) => step, text: num };
  const across = scale(axis.at(x0), axis.at(x1), PAD.left, width - PAD.right);
  const x = (step) => across(axis.at(step));
  const { y, y0, y1, marks: marked, log } = vertical(spec, height);
  const svg = s("svg", { width, height, "aria-hidden": "true" });
  svg.append(...zones(spec, width, y0, y1, y));
  const texts =
    log || spec.unit === "share" ? marked.map((one) => formatOf(spec.unit)(one)) : tickTexts(marked);
  for (const [i, value] of marked.entries()) {
    svg.append(
      s("line", { class: "grid", x1: PAD.left, x2: width - PAD.right, y1: y(value), y2: y(value) }),
      s(
        "text",
        { class: "tick", x: PAD.left - 7, y: y(value) + 4, "text-anchor": "end" },
        texts[i],
      ),
    );
  }
  const middle = (PAD.left + width - PAD.right) / 2;
  svg.append(s("text", { class: "tick", x: middle, y: height - 4, "text-anchor": "middle" }, axisText(axis, spec, log)));
  for (const value of edges(x0, x1)) {
    const anchor = value === x0 ? "start" : value === x1 ? "end" : "middle";
    svg.append(
      s(
        "text",
        { class: "tick", x: x(value), y: height - 4, "text-anchor": anchor },
        axis.text(axis.at(value)),
      ),
    );
  }
  if (!log && y0 > 0) svg.append(broken(height));
  for (const span of spec.spans ?? []) {
    const [first, last] = [Math.max(span.first ?? x0, x0), Math.min(span.last ?? x1, x1)];
    if (first > last) continue;
    const from = x(first);
    svg.append(
      s("line", {
        class: `span ${span.level}`,
        x1: from,
        x2: Math.max(from + 3, x(last)),
        y1: height - PAD.bottom,
        y2: height - PAD.bottom,
      }),
    );
  }
  for (const mark of spec.marks ?? []) {
    if (mark.step < x0 || mark.step > x1) continue;
    svg.append(
      s(
        "line",
        {
          class: `event ${mark.level ?? ""}`,
          x1: x(mark.step),
          x2: x(mark.step),
          y1: PAD.top,
          y2: height - PAD.bottom,
        },
        s("title", {}, mark.text),
      ),
    );
  }
  for (const one of spec.series) svg.append(...curve(log ? above(one) : one, x, y, width));
  const line = s("line", {
    class: "cursor",
    y1: PAD.top,
    y2: height - PAD.bottom,
    visibility: "hidden",
  });
  const dots = spec.series.map((one) =>
    s("circle", { class: `dot ${one.color ?? "c0"}`, r: 3.5, visibility: "hidden" }),
  );
  svg.append(line, ...dots);
  figure.replaceChildren(svg);
  return (step) => moveCursor(step, spec, x, y, line, dots);
}

// The mark of an axis that does not start at zero.
function broken(height) {
  const [x, y] = [PAD.left - 3, height - PAD.bottom];
  return s(
    "path",
    { class: "broken", d: `M${x},${y - 9}l6,2.5l-6,2.5l6,2.5` },
    s("title", {}, "This axis does not start at 0."),
  );
}

function zones(spec, width, y0, y1, y) {
  const rect = (from, to, cls) => {
    const [low, high] = [Math.max(from, y0), Math.min(to, y1)];
    if (!(high > low)) return [];
    return [
      s("rect", {
        class: cls,
        x: PAD.left,
        width: width - PAD.left - PAD.right,
        y: y(high),
        height: y(low) - y(high),
      }),
    ];
  };
  const found = [];
  const [healthyLow, healthyHigh] = spec.healthy ?? [null, null];
  if (healthyLow !== null || healthyHigh !== null) {
    found.push(...rect(healthyLow ?? -Infinity, healthyHigh ?? Infinity, "healthy"));
  }
  const [redLow, redHigh] = spec.red ?? [null, null];
  if (redLow !== null) found.push(...rect(-Infinity, redLow, "red"));
  if (redHigh !== null) found.push(...rect(redHigh, Infinity, "red"));
  return found;
}

// There is no room for more than one of the two.
function axisText(axis, { series }, log) {
  if (!log) return axis.name;
  const left = series.flatMap((one) => one.values).filter((value) => value !== null && !(value > 0));
  return left.length ? `log scale, ${left.length} at 0 left out` : `${axis.name}, log scale`;
}

// Without the values that a logarithmic axis cannot show.
function above(one) {
  const keep = (list) => list?.map((value) => (value > 0 ? value : null));
  return { ...one, values: keep(one.values), smooth: keep(one.smooth), low: keep(one.low), high: keep(one.high) };
}

function curve(one, x, y, width) {
  const color = one.color ?? "c0";
  const line = points(one.steps, one.smooth ?? one.values, width);
  const at = ([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`;
  const drawn = [];
  // Intervals were measured at their steps, and nothing is known of them in between.
  const measured = one.low && one.high;
  if (measured) {
    const there = one.steps
      .map((step, i) => [step, one.low[i], one.high[i]])
      .filter((p) => p[1] !== null && p[2] !== null);
    drawn.push(...there.map((p) => whisker(x(p[0]), y(p[1]), y(p[2]), color)));
  }
  if (one.smooth) {
    const raw = points(one.steps, one.values, width).map(at).join(" ");
    drawn.push(s("polyline", { class: `curve raw ${color}`, points: raw }));
  }
  const between = measured || one.dashed ? "between " : "";
  drawn.push(s("polyline", { class: `curve ${between}${color}`, points: line.map(at).join(" ") }));
  if (line.length <= 4 || ((measured || one.dashed) && line.length < width / 8)) {
    drawn.push(
      ...line.map(([step, value]) =>
        s("circle", { class: `dot ${color}`, r: 3, cx: x(step), cy: y(value) }),
      ),
    );
  }
  return drawn;
}

function whisker(x, low, high, color) {
  const cap = (y) => `M${x - 3},${y}h6`;
  return s("path", { class: `whisker ${color}`, d: `M${x},${low}V${high}${cap(low)}${cap(high)}` });
}

function moveCursor(step, spec, x, y, line, dots) {
  const on = step !== null && step >= spec.steps[0] && step <= spec.steps[1];
  line.setAttribute("visibility", on ? "visible" : "hidden");
  if (on) {
    line.setAttribute("x1", x(step));
    line.setAttribute("x2", x(step));
  }
  spec.series.forEach((one, i) => {
    const at = on ? one.steps.indexOf(step) : -1;
    const value = at < 0 ? null : (one.smooth ?? one.values)[at];
    dots[i].setAttribute("visibility", value === null ? "hidden" : "visible");
    if (value === null) return;
    dots[i].setAttribute("cx", x(step));
    dots[i].setAttribute("cy", y(value));
  });
}
