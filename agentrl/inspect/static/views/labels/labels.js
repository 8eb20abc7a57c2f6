// Labels and comments of reviewers on one rollout, and the form that adds one where the server was
// started for that (`agentrl inspect --labels`).

import { get, isExport, post } from "../../api.js";
import { h } from "../../dom.js";

const NAME = "agentrl-reviewer";

// With `span`, a function of the tokens that are chosen, new labels are about these: it gives
// [first, end] in the responses of the rollout, or null for the whole rollout. `written` is given all
// labels after one was added.
export function labelCard(data, params, { span = () => null, written = () => {} } = {}) {
  const list = h("div", {});
  const show = (labels) =>
    list.replaceChildren(
      labels.length
        ? h("ul", { class: "labels", "aria-label": "Labels" }, labels.map(item))
        : h("p", { class: "note" }, "none yet"),
    );
  show(data.labels ?? []);
  const card = h("section", { class: "card" }, h("h2", {}, "Labels"), list);
  card.hidden = !data.labels?.length;
  if (!isExport) addForm(card, params, span, (labels) => {
      show(labels);
      written(labels);
    });
  return card;
}

function item(one) {
  const tokens = one.first_token === null ? "" : ` tokens ${one.first_token}:${one.end_token}`;
  return h(
    "li",
    {},
    one.label && h("strong", {}, one.label),
    h("span", { class: "note" }, `${tokens} by ${one.by}`),
    one.comment && h("p", {}, one.comment),
  );
}

async function addForm(card, params, span, show) {
  try {
    if (!(await get("label")).can_label) return;
  } catch {
    return; // a server that has gone says so elsewhere
  }
  const label = h("input", { placeholder: "hacked", "aria-label": "Label" });
  const comment = h("input", { placeholder: "why", "aria-label": "Comment" });
  const by = h("input", { placeholder: "your name", "aria-label": "Reviewer", value: reviewer() });
  const said = h("p", { class: "note", role: "status" });
  const send = async (event) => {
    event.preventDefault();
    try {
      const { run, kind, step, rollout } = params;
      const given = { label: label.value.trim(), comment: comment.value.trim(), by: by.value.trim() };
      const [first_token, end_token] = span() ?? [null, null];
      const place = { run, kind, step: Number(step), rollout, first_token, end_token };
      const answer = await post("label", { ...place, ...given });
      remember(by.value.trim());
      show(answer.labels);
      label.value = comment.value = "";
      said.textContent = "written";
    } catch (error) {
      said.textContent = error.message;
    }
  };
  card.append(
    h("form", { onsubmit: send }, label, comment, by, h("button", { "data-key": "label" }, "Add")),
    said,
  );
  card.hidden = false;
}

function reviewer() {
  try {
    return localStorage.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}

function remember(name) {
  try {
    localStorage.setItem(NAME, name);
  } catch {
    // Without storage it is typed again.
  }
}
