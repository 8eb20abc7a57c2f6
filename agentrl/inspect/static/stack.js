// Parts of a whole: stacked over the steps, and as one bar with its list.

import { h, s } from "./dom.js";
import { num, percent, seconds } from "./format.js";
import { follow, pointAt } from "./cursor.js";
import { nearest, pool, scale, ticks } from "./scale.js";

const PAD = { left: 48, right: 10, top: 8, bottom: 20 };
const MOST = 160;

// parts: [{name, color, steps, values}] of one length; share: draw each step as parts of 1.
export function stackChart({ parts, share = false, label, height = 170, open, show = num }) {
  const figure = h("div", {
    class: "chart stack",
    role: "img",
    "aria-label": label,
    vars: { height: `${height}px` },
  });
  const steps = [...new Set(parts.flatMap((part) => part.steps))].sort((a, b) => a - b);
  if (!steps.length) return figure;
  const at = new Map(steps.map((step, i) => [step, i]));
  const full = parts.map((part) => {
    const row = new Array(steps.length).fill(0);
    part.steps.forEach((step, i) => (row[at.get(step)] = part.values[i] ?? 0));
    return row;
  });
  const tip = h("div", { class: "tip", hidden: true });
  let width = 0;
  let column = null;
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (!now || now === width) return;
    width = now;
    const drawn = paint({ parts, full, steps, share, width, height, show });
    column = drawn.column;
    figure.replaceChildren(drawn.svg, tip);
  }).observe(figure);
  const under = (event) => {
    const box = figure.getBoundingClientRect();
    const spot = (event.clientX - box.left - PAD.left) / (width - PAD.left - PAD.right);
    return steps[Math.max(0, Math.min(steps.length - 1, Math.floor(spot * steps.length)))];
  };
  figure.addEventListener("pointermove", (event) => pointAt(under(event)));
  figure.addEventListener("pointerleave", () => pointAt(null));
  figure.addEventListener("click", (event) => open?.(under(event)));
  figure.classList.toggle("opens", Boolean(open));
  follow(figure, (step) => {
    const found = step === null ? null : at.get(nearest(steps, step));
    tip.hidden = found === null;
    if (found === null) return;
    const sum = full.reduce((a, row) => a + row[found], 0);
    const told = parts.map((part, i) => [part, full[i][found]]).filter(([, value]) => value > 0);
    tip.replaceChildren(
      h("b", {}, `step ${steps[found]}`),
      ...told.map(([part, value]) =>
        h(
          "span",
          {},
          h("i", { class: `swatch ${part.color}` }),
          `${part.name} `,
          share ? percent(value / sum) : show(value),
        ),
      ),
    );
    const left = column(found);
    tip.style.setProperty("left", `${Math.min(left + 12, Math.max(0, width - 170))}px`);
  });
  return figure;
}

// Round numbers of the unit that the label of a tick has: 2 min and not 3.3 min.
function stackTicks(top, show) {
  const unit = show !== seconds || top < 100 ? 1 : top < 6000 ? 60 : 3600;
  return ticks(0, top / unit, 3).map((value) => value * unit);
}

function paint({ parts, full, steps, share, width, height, show }) {
  const rows = full.map((row) => pool(row, MOST));
  const count = rows[0].length;
  const sums = rows[0].map((_, i) => rows.reduce((a, row) => a + row[i], 0));
  const top = share ? 1 : Math.max(...sums, 1e-9);
  const x = scale(0, count, PAD.left, width - PAD.right);
  const y = scale(0, top, height - PAD.bottom, PAD.top);
  const svg = s("svg", { width, height, "aria-hidden": "true" });
  const gap = count > 80 ? 0 : Math.min(3, 0.2 * (x(1) - x(0)));
  for (const value of share ? [0, 0.5, 1] : stackTicks(top, show)) {
    svg.append(
      s("line", { class: "grid", x1: PAD.left, x2: width - PAD.right, y1: y(value), y2: y(value) }),
      s(
        "text",
        { class: "tick", x: PAD.left - 7, y: y(value) + 4, "text-anchor": "end" },
        share ? percent(value) : show(value),
      ),
    );
  }
  const middle = (PAD.left + width - PAD.right) / 2;
  svg.append(s("text", { class: "tick", x: middle, y: height - 4, "text-anchor": "middle" }, "step"));
  const floor = new Array(count).fill(0);
  rows.forEach((row, part) => {
    for (let i = 0; i < count; i++) {
      const size = share ? row[i] / (sums[i] || 1) : row[i];
      if (!size) continue;
      svg.append(
        s("rect", {
          class: `fill ${parts[part].color}`,
          x: x(i) + gap / 2,
          width: Math.max(0.6, x(1) - x(0) - gap),
          y: y(floor[i] + size),
          height: y(floor[i]) - y(floor[i] + size),
        }),
      );
      floor[i] += size;
    }
  });
  const marked = [[0, "start"], steps.length > 1 && [steps.length - 1, "end"]].filter(Boolean);
  for (const [at, anchor] of marked) {
    svg.append(
      s(
        "text",
        {
          class: "tick",
          x: anchor === "start" ? PAD.left : width - PAD.right,
          y: height - 4,
          "text-anchor": anchor,
        },
        num(steps[at]),
      ),
    );
  }
  return { svg, column: (i) => x(((i + 0.5) * count) / steps.length) };
}

// One bar of shares that add up to 1, and what they are in a list.
// parts: [{name, color, value, what?}]
export function shareBar({ parts, show, label }) {
  const sum = parts.reduce((a, part) => a + part.value, 0);
  const text = (part) => percent(part.value / (sum || 1));
  const there = parts.filter((part) => part.value > 0);
  return h(
    "div",
    { class: "share" },
    h(
      "div",
      {
        class: "bar",
        role: "img",
        "aria-label": `${label}: ${there.map((part) => `${part.name} ${text(part)}`).join(", ")}`,
      },
      there.map((part) =>
        h("div", {
          class: `fill ${part.color}`,
          vars: { "flex-grow": part.value / sum },
          title: `${part.name}: ${text(part)}`,
        }),
      ),
    ),
    h(
      "ul",
      { class: "legend" },
      parts.map((part) =>
        h(
          "li",
          { class: part.value ? "" : "none", title: part.what },
          h("i", { class: `swatch ${part.color}` }),
          h("span", {}, part.name),
          h("b", {}, text(part)),
          h("span", { class: "note" }, show(part.value)),
        ),
      ),
    ),
  );
}
