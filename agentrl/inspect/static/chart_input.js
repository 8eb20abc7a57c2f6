// What a chart hears: pointer and keys move the shared cursor, a click opens a step, a drag zooms.

import { pointAt } from "./cursor.js";
import { h } from "./dom.js";
import { formatOf } from "./format.js";
import { nearest } from "./scale.js";

export const PAD = { left: 48, right: 10, top: 8, bottom: 20 };
// A hand that clicks moves a little.
const DRAG_PX = 6;
// Which step of a chart the keyboard stands on, over redraws of a running run.
const held = new Map();

export function interact(figure, spec, all, width) {
  const before = held.get(spec.key);
  let now = all.includes(before) ? before : all.at(-1);
  const say = (step) => {
    now = step;
    if (spec.key) held.set(spec.key, step);
    figure.setAttribute("aria-valuenow", step);
    const said = spec.series.map((one) => {
      const value = one.values[one.steps.indexOf(step)];
      return `${spec.series.length > 1 ? `${one.name} ` : ""}${formatOf(spec.unit)(value ?? null)}${spec.unit && spec.unit !== "share" ? ` ${spec.unit}` : ""}`;
    });
    figure.setAttribute("aria-valuetext", `step ${step}: ${said.join(", ")}`);
    pointAt(step);
  };
  const at = spec.look?.axis.at ?? ((step) => step);
  const places = all.map(at);
  const under = (event) => {
    const box = figure.getBoundingClientRect();
    const share = (event.clientX - box.left - PAD.left) / (width() - PAD.left - PAD.right);
    const [from, to] = spec.steps.map(at);
    return all[places.indexOf(nearest(places, from + share * (to - from)))];
  };
  const dragged = spec.look?.onZoom ? dragging(figure, under, spec.look.onZoom) : () => false;
  for (const [name, value] of Object.entries({
    role: "slider",
    tabindex: 0,
    "aria-label": spec.label,
    "aria-valuemin": all[0],
    "aria-valuemax": all.at(-1),
    "aria-valuenow": now,
  }))
    figure.setAttribute(name, value);
  if (spec.key) figure.dataset.key = spec.key;
  figure.classList.toggle("opens", Boolean(spec.open));
  figure.addEventListener("pointermove", (event) => say(under(event)));
  figure.addEventListener("pointerleave", () => pointAt(null));
  figure.addEventListener("click", (event) => dragged() || spec.open?.(under(event)));
  figure.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Enter") spec.open?.(now);
    else if (by === undefined) return;
    else say(all[Math.max(0, Math.min(all.length - 1, all.indexOf(now) + by))]);
    event.preventDefault();
  });
  figure.addEventListener("blur", () => pointAt(null));
}

// Dragging with a mouse or a pen marks the steps to zoom to; a finger scrolls the page. Returns
// whether the click that follows was the end of a drag.
function dragging(figure, under, onZoom) {
  let [from, began, mark, moved] = [null, 0, null, false];
  const end = () => {
    mark?.remove();
    [from, mark] = [null, null];
  };
  figure.addEventListener("pointerdown", (event) => {
    moved = false;
    if (event.button !== 0 || event.pointerType === "touch") return;
    [from, began] = [under(event), event.clientX];
    figure.setPointerCapture(event.pointerId);
  });
  figure.addEventListener("pointermove", (event) => {
    if (from === null || Math.abs(event.clientX - began) < DRAG_PX) return;
    moved = true;
    if (!mark) figure.append((mark = h("div", { class: "zooming" })));
    const left = Math.min(began, event.clientX) - figure.getBoundingClientRect().left;
    mark.style.setProperty("left", `${left}px`);
    mark.style.setProperty("width", `${Math.abs(event.clientX - began)}px`);
  });
  figure.addEventListener("pointerup", (event) => {
    const start = from;
    end();
    if (start === null || !moved) return;
    const [low, high] = [start, under(event)].sort((a, b) => a - b);
    if (low < high) onZoom([low, high]);
  });
  figure.addEventListener("pointercancel", end);
  return () => moved;
}
