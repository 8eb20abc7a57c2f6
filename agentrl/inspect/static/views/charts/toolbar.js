// The controls above the curves: smoothing, axis, scale, steps, and a table of what is drawn.

import { h } from "../../dom.js";

const AXES = { step: "step", time: "wall-clock", tokens: "tokens" };

// settings: of `settingsOf`; axes: of `axesOf`; change(part): is given what was changed.
export function toolbar({ settings, axes, steps, change, save }) {
  const shown = h("output", {}, settings.smooth.toFixed(2));
  const smooth = h("input", {
    type: "range",
    min: 0,
    max: 0.99,
    step: 0.01,
    value: String(settings.smooth),
    "aria-label": "Smoothing",
    "data-key": "smoothing",
    oninput: () => {
      shown.textContent = Number(smooth.value).toFixed(2);
      change({ smooth: Number(smooth.value) });
    },
  });
  const axis = h(
    "select",
    {
      "aria-label": "Horizontal axis",
      "data-key": "axis",
      onchange: () => change({ axis: axis.value }),
    },
    Object.keys(axes).map((name) =>
      h("option", { value: name, selected: name === settings.axis }, AXES[name]),
    ),
  );
  const log = h("input", {
    type: "checkbox",
    checked: settings.log,
    "data-key": "log",
    onchange: () => change({ log: log.checked }),
  });
  const [low, high] = settings.zoom ?? steps;
  const zoom = () => {
    const [from, to] = [Number(first.value), Number(last.value)];
    if (from < to) change({ zoom: from <= steps[0] && to >= steps[1] ? null : [from, to] });
  };
  const first = stepBox("First step drawn", low, steps, zoom);
  const last = stepBox("Last step drawn", high, steps, zoom);
  return h(
    "div",
    { class: "chart-bar", role: "group", "aria-label": "How the curves are drawn" },
    h(
      "label",
      { title: "Exponential moving average; the curve as logged stays behind it" },
      "Smoothing ",
      smooth,
      shown,
    ),
    h("label", {}, "Over ", axis),
    h("label", {}, log, " Log scale"),
    h(
      "span",
      { class: "steps-shown", title: "Or drag over a curve" },
      "Steps ",
      first,
      " to ",
      last,
      h(
        "button",
        {
          disabled: settings.zoom === null,
          "data-key": "all-steps",
          onclick: () => change({ zoom: null }),
        },
        "All steps",
      ),
    ),
    h(
      "button",
      { title: "The curves that are drawn, as a table", "data-key": "csv", onclick: save },
      "CSV",
    ),
  );
}

function stepBox(label, value, [min, max], onchange) {
  const key = label.toLowerCase().replaceAll(" ", "-");
  return h("input", {
    type: "number",
    value: String(value),
    min,
    max,
    "aria-label": label,
    "data-key": key,
    onchange,
  });
}
