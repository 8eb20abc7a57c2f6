// What a running run does at this moment: its phase, what its rollouts wait for, its engines, and
// the rollouts that have been in flight longest. Kept up to date between redraws of the page.

import { h } from "../../dom.js";
import { lastPart, num, plural, seconds, secondsLike, words } from "../../format.js";

// The run writes once a second; one that has not for this long is stuck, or cannot write.
const STALE_S = 15;
const SHOWN = 6;

// pulse: the server's answer of that name. Returns {node, update(pulse)}.
export function livePanel(pulse) {
  const now = h("div", { class: "live-now", role: "status", "aria-live": "off" });
  const waits = h("div", { class: "live-waits" });
  const engines = h("div", { class: "scroll" });
  const oldest = h("div", { class: "scroll" });
  const rest = h("div", { class: "scroll" });
  const more = h("summary", {}, "More rollouts in flight");
  const others = h("details", { "data-key": "live-more" }, more, rest);
  const node = h(
    "section",
    { class: "card live-panel", "aria-labelledby": "live-title" },
    h("h2", { id: "live-title" }, "Now"),
    now,
    waits,
    h("div", { class: "live-parts" }, engines, h("div", {}, oldest, others)),
  );
  const update = ({ live }) => {
    node.hidden = !live;
    if (!live || selected(node)) return;
    now.replaceChildren(...phaseOf(live));
    waits.replaceChildren(...waitsOf(live));
    engines.replaceChildren(...enginesOf(live.engines));
    const list = slowest(live.rollouts?.oldest ?? []);
    oldest.replaceChildren(...rolloutsOf(list.slice(0, SHOWN), "Rollouts in flight longest"));
    rest.replaceChildren(...rolloutsOf(list.slice(SHOWN), "Other rollouts in flight"));
    others.hidden = list.length <= SHOWN;
    more.textContent = `${list.length - SHOWN} more, of ${plural(live.rollouts?.count ?? 0, "rollout")} in flight`;
  };
  update(pulse);
  return { node, update };
}

// Rollouts of a group begin together: of those of one age the one that waits longest comes first.
function slowest(list) {
  const age = (one) => Math.round(one.age_s);
  return list.toSorted((a, b) => age(b) - age(a) || b.waits_s - a.waits_s);
}

// A redraw would take away what the reader has selected.
function selected(node) {
  const selection = getSelection();
  return !selection.isCollapsed && node.contains(selection.anchorNode);
}

const PHASES = {
  loading: () => "Loading model, data and sandboxes",
  rollout: (step) => `Rolling out step ${step}`,
  train: (step) => `Training step ${step}`,
  sync: () => "Moving weights to the engines",
  checkpoint: () => "Saving a checkpoint",
  replay: (step) => `Reading the stored rollouts of step ${step}`,
};

function phaseText({ name }, step) {
  if (name.startsWith("eval ")) return `Evaluating ${name.slice(5)}`;
  return PHASES[name]?.(num(step)) ?? words(name);
}

function phaseOf(live) {
  const { phase } = live;
  const [done, total, what] = phase.batches
    ? [phase.batches_done, phase.batches, "micro-batches"]
    : [phase.rollouts_done, phase.rollouts, "rollouts"];
  const left = live.step_s && live.steps ? live.step_s * (live.steps - live.steps_done) : null;
  const facts = [
    total > 0 && `${num(done)} of ${num(total)} ${what}`,
    phase.tokens > 0 && phase.for_s > 1 && `${num(phase.tokens / phase.for_s)} tokens a second`,
    live.step_s && `last step ${seconds(live.step_s)}`,
    left > 0 && `about ${seconds(left)} to the last step`,
  ].filter(Boolean);
  return [
    h(
      "p",
      { class: "live-phase" },
      h("b", {}, phaseText(phase, (live.steps_done ?? 0) + 1)),
      h("span", { class: "note" }, ` for ${seconds(phase.for_s)}`),
    ),
    total > 0
      ? h(
          "div",
          { class: "fill-bar", "aria-hidden": "true" },
          h("div", { vars: { "--share": Math.min(1, done / total) } }),
        )
      : "",
    h("p", { class: "note" }, facts.join(" \u00b7 ")),
    live.age_s > STALE_S
      ? h("p", { class: "warn-ink" }, `The run has not written this for ${seconds(live.age_s)}.`)
      : "",
  ].filter(Boolean);
}

function waitsOf({ rollouts, finished_groups: queue }) {
  const chips = Object.entries(rollouts?.waits ?? {})
    .sort(([, a], [, b]) => b.count - a.count)
    .map(([name, one]) => [
      `${one.count === 1 ? "waits" : "wait"} for the ${name}`,
      num(one.count),
      `longest ${seconds(one.longest_s)}`,
    ]);
  if (queue.count > 0) {
    chips.push([
      `${queue.count === 1 ? "group waits" : "groups wait"} to be trained`,
      num(queue.count),
      `oldest ${seconds(queue.oldest_s)}`,
    ]);
  }
  if (rollouts) chips.unshift(["rollouts in flight", num(rollouts.count), ""]);
  return chips.map(([name, count, note]) =>
    h("p", {}, h("b", {}, count), ` ${name}`, note && h("span", { class: "note" }, ` ${note}`)),
  );
}

function enginesOf(engines) {
  if (!engines.length) return [];
  return [
    h(
      "table",
      { "aria-label": "Engines" },
      head("engine", "turns in flight", "queued", "weights"),
      h("tbody", {}, engines.map(engineRow)),
    ),
  ];
}

function engineRow(one) {
  const busy = Math.min(one.in_flight ?? 0, one.slots ?? Infinity);
  const queued = Math.max(0, (one.in_flight ?? 0) - (one.slots ?? Infinity));
  return h(
    "tr",
    {},
    h(
      "td",
      {},
      one.name,
      one.state !== "active" && h("span", { class: "pill warn", title: one.why }, one.state),
    ),
    h(
      "td",
      { class: "fill-cell" },
      one.slots &&
        h(
          "span",
          { class: "fill-bar", "aria-hidden": "true" },
          h("span", { vars: { "--share": busy / one.slots } }),
        ),
      one.slots ? `${num(busy)} of ${num(one.slots)}` : num(busy),
    ),
    h("td", { class: queued > 0 ? "warn-ink" : "" }, num(queued)),
    h("td", {}, num(one.version)),
  );
}

function rolloutsOf(list, label) {
  if (!list.length) return [];
  const [age, wait] = ["age_s", "waits_s"].map((of) => secondsLike(list.map((one) => one[of])));
  return [
    h(
      "table",
      { "aria-label": label },
      head("task", "rollout", "turn", "age", "waits for", "engine"),
      h(
        "tbody",
        {},
        list.map((one) =>
          h(
            "tr",
            {},
            h("td", { class: "mono task", title: one.task_id }, one.task_id),
            h("td", { class: "mono wide", title: one.rollout_id }, lastPart(one.rollout_id)),
            h("td", {}, num(one.turn)),
            h("td", {}, age(one.age_s)),
            h("td", {}, one.waits_for, h("span", { class: "note" }, ` ${wait(one.waits_s)}`)),
            h("td", { class: "wide" }, one.engine || "\u2013"),
          ),
        ),
      ),
    ),
  ];
}

function head(...names) {
  const wide = new Set(["rollout", "engine"]);
  return h(
    "thead",
    {},
    h(
      "tr",
      {},
      names.map((name, i) => h("th", { class: i && wide.has(name) ? "wide" : null }, name)),
    ),
  );
}
