// The same task across the training: a bar for each time it was tried, and a slider over them.

import { h, s } from "../dom.js";
import { num, plural } from "../format.js";
import { href } from "../router.js";

const HEIGHT = 56;

export function taskSlider(data, params) {
  const all = [...data.same_task].sort(
    (a, b) => a.step - b.step || a.rollout_id.localeCompare(b.rollout_id, "en", { numeric: true }),
  );
  if (all.length < 2) return null;
  const at = all.findIndex(
    (one) =>
      one.rollout_id === params.rollout &&
      one.kind === params.kind &&
      String(one.step) === String(params.step),
  );
  const say = h("p", { class: "note" });
  const tell = (i) =>
    (say.textContent = all[i] ? `step ${all[i].step}, reward ${num(all[i].reward)}` : "");
  const to = (one) =>
    href("rollout", { run: params.run, kind: one.kind, step: one.step, rollout: one.rollout_id });
  const range = h("input", {
    type: "range",
    min: 0,
    max: all.length - 1,
    step: 1,
    value: String(Math.max(0, at)),
    "data-key": "task-slider",
    "aria-label": "The same task across the training",
    oninput: () => tell(Number(range.value)),
    onchange: () => (location.hash = to(all[Number(range.value)])),
  });
  range.value = String(Math.max(0, at));
  const steps = new Set(all.map((one) => one.step));
  tell(Math.max(0, at));
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "Same task"),
    h(
      "p",
      { class: "note" },
      steps.size > 1
        ? `${plural(all.length, "rollout")} in ${plural(steps.size, "step")}; a bar is as high as its reward`
        : `tried in step ${[...steps][0]} only: its ${plural(all.length, "rollout")}, a bar as high as the reward`,
    ),
    bars(all, at),
    range,
    say,
  );
}

function bars(all, at) {
  const rewards = all.map((one) => one.reward ?? 0);
  const [low, high] = [Math.min(0, ...rewards), Math.max(0, ...rewards)];
  const size = high - low || 1;
  const y = (value) => HEIGHT - ((value - low) / size) * HEIGHT;
  const svg = s("svg", {
    class: "task-bars",
    viewBox: `0 0 ${all.length} ${HEIGHT}`,
    preserveAspectRatio: "none",
    "aria-hidden": "true",
  });
  all.forEach((one, i) => {
    const value = one.reward ?? 0;
    const top = Math.min(y(value), y(0));
    const cls = i === at ? "here" : all[i].step === all[at]?.step ? "near" : "";
    svg.append(
      s(
        "rect",
        {
          class: cls,
          x: i + 0.1,
          width: 0.8,
          y: top - (value === 0 ? 2 : 0),
          height: Math.max(2, Math.abs(y(value) - y(0))),
        },
        s("title", {}, `step ${one.step}: ${num(one.reward)}`),
      ),
    );
  });
  return svg;
}
