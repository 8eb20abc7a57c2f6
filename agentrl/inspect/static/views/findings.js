// What the detectors and rules say, each on the time axis, with evidence and levers.

import { h } from "../dom.js";
import { inSigns, num, words } from "../format.js";
import { href } from "../router.js";

const ORDER = { ok: 0, unknown: 1 };
const NAMES = { fail: "Fail", warn: "Warn", unknown: "Cannot tell", ok: "Fine" };

export function findings(run, steps, id) {
  // A finding has a line of its own already.
  const named = new Set(run.verdicts.map((one) => one.title));
  const happened = run.events.filter((event) => !event.detector && !named.has(event.text));
  const byName = new Map(run.verdicts.map((one) => [one.detector, one]));
  const found = run.causes;
  const rest = run.verdicts
    .filter((one) => one.status === "ok" || one.status === "unknown")
    .sort((a, b) => ORDER[a.status] - ORDER[b.status]);
  return h(
    "section",
    { class: "card findings", "aria-labelledby": "findings-title" },
    h("h2", { id: "findings-title" }, "Findings"),
    found.length
      ? found.map((cause) => finding(cause, byName, steps, id))
      : h("p", { class: "calm" }, h("span", { class: "pill good" }, "Fine"), " ", nothing(rest)),
    happened.length > 0 && events(happened, steps),
    found.length + happened.length > 0 && axis(steps),
    run.levers.length > 0 && changes(run.levers, found.length > 1),
    rest.length > 0 &&
      h(
        "details",
        { class: "rest", "data-key": "rest" },
        h("summary", {}, counted(rest)),
        h(
          "ul",
          {},
          rest.map((one) =>
            h(
              "li",
              {},
              pill(one.status),
              h("span", {}, words(one.detector)),
              h("span", { class: "note" }, inSigns(one.title)),
            ),
          ),
        ),
      ),
  );
}

function nothing(rest) {
  const looked = rest.filter((one) => one.status === "ok").length;
  return looked
    ? `${looked} of ${rest.length} detectors have enough data; none of them found anything.`
    : "No detector has enough data yet.";
}

function counted(rest) {
  const fine = rest.filter((one) => one.status === "ok").length;
  const open = rest.length - fine;
  return [fine && `${fine} fine`, open && `${open} without enough data`].filter(Boolean).join(", ");
}

function pill(status) {
  return h("span", { class: `pill ${status === "ok" ? "good" : status}` }, NAMES[status] ?? status);
}

function finding(cause, byName, steps, id) {
  const one = byName.get(cause.detector);
  return h(
    "details",
    { class: "finding", "data-key": `finding ${one.detector}`, "data-item": "" },
    h(
      "summary",
      {},
      pill(one.status),
      h("span", { class: "title" }, inSigns(one.title)),
      lane([{ from: one.first_step, to: one.last_step, level: one.status }], steps),
    ),
    h(
      "div",
      { class: "body" },
      h(
        "div",
        {},
        h("h3", {}, "Evidence"),
        h(
          "ul",
          {},
          one.evidence.map((piece) => evidence(piece, steps, id)),
        ),
      ),
      cause.follows.length > 0 &&
        h(
          "div",
          {},
          h("h3", {}, "What follows from it"),
          h(
            "ul",
            {},
            cause.follows.map((name) => consequence(byName.get(name))),
          ),
        ),
      cause.command && h("div", {}, h("h3", {}, "Next command"), h("code", {}, cause.command)),
    ),
  );
}

function consequence(one) {
  return h(
    "li",
    { class: "consequence" },
    pill(one.status),
    " ",
    h("span", {}, inSigns(one.title)),
    one.first_step !== null && h("span", { class: "note" }, `since step ${num(one.first_step)}`),
  );
}

// One value a key: consequences of a cause need no change of their own.
function changes(levers, several) {
  return h(
    "div",
    { class: "changes" },
    h("h3", {}, "What to change in the run file"),
    h(
      "ul",
      {},
      levers.map((one) => lever(one, several)),
    ),
  );
}

function evidence(piece, steps, id) {
  const at = piece.last_step ?? piece.first_step;
  return h(
    "li",
    {},
    inSigns(piece.text),
    at > 0 && [
      " ",
      h("a", { href: href("step", { run: id, kind: "train", step: at }) }, `step ${num(at)}`),
    ],
    piece.rollout_ids.length > 0 &&
      h(
        "span",
        { class: "ids" },
        piece.rollout_ids.map((rollout) =>
          h("a", { class: "mono", href: rolloutAddress(id, rollout, at) }, rollout),
        ),
      ),
  );
}

// Ids of training rollouts begin with their step; other evidence names the step itself.
function rolloutAddress(run, rollout, at) {
  const own = rollout.match(/^step-(\d+)\//);
  const held = rollout.match(/^eval-(.+?)-(\d+)\//);
  if (held) return href("rollout", { run, kind: `eval/${held[1]}`, step: held[2], rollout });
  return href("rollout", { run, kind: "train", step: own ? own[1] : at, rollout });
}

function lever(one, several) {
  return h(
    "li",
    {},
    h(
      "code",
      {},
      `${one.key}: ${typeof one.value === "string" ? one.value : JSON.stringify(one.value)}`,
    ),
    h("span", { class: "note" }, several ? `${one.why} [${words(one.detector)}]` : one.why),
  );
}

function lane(spans, [first, last]) {
  const share = (step) => (100 * (step - first)) / (last - first || 1);
  return h(
    "span",
    { class: "lane", "aria-hidden": "true" },
    spans.map((span) => {
      const from = share(span.from ?? first);
      const to = share(span.to ?? last);
      return h("i", {
        class: span.level,
        title: span.title,
        vars: { left: `${from}%`, width: `max(4px, ${Math.max(0, to - from)}%)` },
      });
    }),
  );
}

function events(list, steps) {
  return h(
    "details",
    { class: "finding events", "data-key": "events", "data-item": "" },
    h(
      "summary",
      {},
      h("span", { class: "pill" }, "Events"),
      h("span", { class: "title" }, list.at(-1).text),
      lane(
        list.map((event) => ({
          from: event.step,
          to: event.step,
          level: "tick",
          title: `step ${event.step}: ${event.text}`,
        })),
        steps,
      ),
    ),
    h(
      "ul",
      { class: "body list" },
      list.map((event) =>
        h(
          "li",
          {},
          h("span", { class: "note" }, `step ${num(event.step)}`),
          h("span", {}, words(event.what)),
          h("span", {}, event.text),
        ),
      ),
    ),
  );
}

function axis([first, last]) {
  return h(
    "p",
    { class: "axis", "aria-hidden": "true" },
    h("span", {}, `step ${num(first)}`),
    h("span", {}, num(last)),
  );
}
