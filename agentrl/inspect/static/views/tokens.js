// Every token of a row, under the overlay one chooses: the last stop on the way from a curve.

import { get } from "../api.js";
import { h } from "../dom.js";
import { kindName, lastPart, num, plural } from "../format.js";
import { href, replace } from "../router.js";
import { labelCard } from "./labels/labels.js";
import { minimap } from "./minimap.js";
import { OVERLAYS, outliers, paintOf, present } from "./overlays.js";
import {
  OVERLAY_KEYS,
  legendOf,
  numbersExplained,
  outlierList,
  overlaySwitches,
  tokenFacts,
  verdict,
} from "./token_side.js";
import { repaint, showIds, tokenText } from "./token_text.js";

async function load(params, signal) {
  const { run, kind, step, rollout, row = 0 } = params;
  const data = await get("tokens", { run, kind, step, rollout, row }, signal);
  if (Array.isArray(data.role)) {
    // Names as they are, or codes with a legend: both are read.
    const legend = [...new Set(data.role)];
    data.role = { legend, codes: data.role.map((name) => legend.indexOf(name)) };
  }
  return data;
}

function draw(data, given) {
  const params = { ...given };
  const { run, kind, step, rollout } = params;
  const up = href("rollout", { run, kind, step, rollout });
  const drawn = stage(data, params);
  const trained = data.why.codes.filter((code) => data.why.legend[code] === "trained").length;
  return {
    title: `Tokens of ${rollout}, ${kindName(kind)} step ${step}, ${lastPart(run)}`,
    crumbs: [
      ["runs", href("runs")],
      [lastPart(run), href("run", { run })],
      [`${kindName(kind)} step ${step}`, href("step", { run, kind, step })],
      [`rollout ${lastPart(rollout)}`, up],
      ["tokens", null],
    ],
    up,
    keys: drawn.keys,
    node: h(
      "div",
      { class: "page" },
      h(
        "header",
        { class: "head" },
        h(
          "div",
          {},
          h("h1", {}, "Tokens"),
          h(
            "p",
            { class: "sub" },
            h("span", { class: "mono" }, rollout),
            h("span", {}, plural(data.n_prompt, "prompt token")),
            h("span", {}, plural(data.ids.length - data.n_prompt, "response token")),
            h("span", {}, `${num(trained)} of them trained`),
          ),
        ),
        h(
          "div",
          { class: "actions" },
          h("a", { class: "button", href: up, "data-key": "turns" }, "Turns"),
          drawn.modes,
        ),
      ),
      data.note && h("p", { class: "notes" }, data.note),
      drawn.node,
    ),
    after: drawn.after,
  };
}

function stage(data, params) {
  const text = tokenText(data);
  const { node, spans } = text;
  const facts = h("div", { id: "token-facts" });
  // One line for a screen reader: all numbers at each token would be a flood.
  const said = h("p", { class: "hidden", role: "status" });
  const legend = h("div");
  const far = h("div");
  let at = -1;
  const labels = tokenLabels(data, params, spans);
  const look = (i, scroll = true) => {
    spans[at]?.removeAttribute("data-here");
    at = Math.max(0, Math.min(spans.length - 1, i));
    spans[at].setAttribute("data-here", "");
    facts.replaceChildren(...tokenFacts(data, at));
    const parts = [...verdict(data, at).children].map((one) => one.textContent);
    said.textContent = `${spans[at].textContent}: ${parts.join(". ")}`;
    if (scroll) spans[at].scrollIntoView({ block: "nearest" });
  };
  const strip = minimap(spans.length, (i) => {
    look(i, false);
    spans[i].scrollIntoView({ block: "center" });
  });
  const choose = (overlay) => {
    const paint = paintOf(overlay, data);
    repaint(spans, data, paint.classes, overlay.id === "ratio");
    strip.set(paint.classes, paint.strength);
    legend.replaceChildren(h("p", { class: "note" }, overlay.what), legendOf(paint, overlay));
    const list = outlierList(outliers(overlay, data), data, overlay, (i) => look(i));
    far.replaceChildren(...(list ? [list] : []));
    for (const box of switches.querySelectorAll("input")) box.checked = box.value === overlay.id;
    params.over = overlay.id;
    replace("tokens", params);
  };
  const there = OVERLAYS.filter((overlay) => present(overlay, data));
  const switches = overlaySwitches(there, choose, "Overlay");
  listen(node, look, () => at, params, labels.choose);
  const modes = modeSwitch(data, params, (mode) => showIds(node, spans, data, mode));
  // Before the tokens are on the page: colouring them there would lay them out twice.
  choose(there.find((overlay) => overlay.id === params.over) ?? there[0]);
  return {
    modes,
    keys: there
      .map((overlay, i) => ({
        keys: [OVERLAY_KEYS[i]],
        shown: OVERLAY_KEYS[i],
        what: overlay.name,
        run: () => choose(overlay),
      }))
      .concat([
        {
          keys: ["ArrowRight", "ArrowLeft"],
          shown: "\u2190 \u2192",
          what: "token by token",
          run: (event) => {
            node.focus({ preventScroll: true });
            look(at + (event.key === "ArrowRight" ? 1 : -1));
          },
        },
      ]),
    node: h(
      "div",
      { class: "token-page" },
      h(
        "div",
        { class: "token-main" },
        h("div", { class: "token-bar card" }, switches, strip.node, legend),
        node,
      ),
      h(
        "aside",
        { class: "side" },
        h("section", { class: "card here" }, facts, numbersExplained(data), said),
        labels.node,
        far,
      ),
    ),
    after: () => {
      if (data.text !== null && params.ids && params.ids !== "text") showIds(node, spans, data, params.ids);
      look(Number(params.at ?? data.n_prompt), params.at !== undefined);
    },
  };
}

function modeSwitch(data, params, set) {
  if (data.text === null) return null;
  const now = params.ids ?? "text";
  return h(
    "fieldset",
    { class: "switches" },
    h("legend", { class: "hidden" }, "Show"),
    [
      ["text", "Text"],
      ["ids", "Ids"],
      ["both", "Both"],
    ].map(([id, name]) =>
      h(
        "label",
        {},
        h("input", {
          type: "radio",
          name: "mode",
          value: id,
          checked: id === now,
          onchange: () => {
            params.ids = id;
            replace("tokens", params);
            set(id);
          },
        }),
        h("span", {}, name),
      ),
    ),
  );
}

const LABEL_HELP = "Click a token to label it; with shift, all up to it.";

// Labels on tokens, and the tokens that a new one is about: none for the whole rollout.
function tokenLabels(data, params, spans) {
  const offset = data.n_prompt - data.response_start;
  let chosen = null;
  const about = h("p", { class: "note" }, LABEL_HELP);
  const choose = (i, extend) => {
    const [from, to] = extend && chosen ? chosen : [i, i];
    chosen = i < data.n_prompt ? null : [Math.min(from, i), Math.max(to, i)];
    mark(spans, "chosen", chosen ? [[chosen[0], chosen[1] + 1, ""]] : []);
    about.textContent = chosen
      ? `About tokens ${num(chosen[0] - data.n_prompt)} to ${num(chosen[1] - data.n_prompt)} of the response; a click in the prompt: about the rollout.`
      : LABEL_HELP;
  };
  const show = (labels) => {
    const some = labels.filter((one) => one.first_token !== null);
    mark(
      spans,
      "label",
      some
        .map((one) => [one.first_token + offset, one.end_token + offset, one.label || one.comment])
        .filter(([, end]) => end > data.n_prompt),
    );
  };
  show(data.labels);
  const span = () => chosen && [chosen[0] - offset, chosen[1] + 1 - offset];
  const node = labelCard(data, params, { span, written: show });
  node.append(about);
  return { node, choose };
}

// Names `data-NAME` on the tokens of these places and no others.
function mark(spans, name, places) {
  for (const one of spans) if (name in one.dataset) delete one.dataset[name];
  for (const [first, end, text] of places)
    for (const one of spans.slice(Math.max(0, first), end)) {
      one.dataset[name] = text;
      if (text) one.title = `label: ${text}`;
    }
}

function listen(node, look, now, params, choose) {
  const under = (event) => event.target.index;
  node.addEventListener(
    "pointerover",
    (event) => under(event) !== undefined && !node.dataset.held && look(under(event), false),
  );
  node.addEventListener("click", (event) => {
    if (under(event) === undefined) return;
    choose(under(event), event.shiftKey);
    // A click holds the token, and its place becomes part of the address.
    if (node.dataset.held === String(under(event))) delete node.dataset.held;
    else node.dataset.held = under(event);
    look(under(event), false);
    params.at = under(event);
    replace("tokens", params);
  });
  node.addEventListener("keydown", (event) => {
    const by = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: 16,
      ArrowUp: -16,
      PageDown: 500,
      PageUp: -500,
    }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    look(now() + by);
  });
}

export default { load, draw };
