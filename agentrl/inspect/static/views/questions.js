// What a reviewer asks first, above all of a reward that may be hacked.

import { h } from "../dom.js";
import { href } from "../router.js";

// Right by the score, and not paid as right ones are: the largest loss first.
export const UNPAID = { q: "is:unpaid is:right sort:reward", kind: "train" };

const QUESTIONS = [
  ["paid and wrong", { q: "is:paid is:wrong sort:-reward", kind: "train" }],
  ["right and not paid", UNPAID],
  ["longest paid", { q: "is:paid sort:-tokens", kind: "train" }],
  ["longest", { q: "sort:-tokens", kind: "train" }],
  ["longest of the solved", { q: "score>=1 sort:-tokens", kind: "train" }],
  ["calls that failed", { tool_status: "any_error" }],
  ["truncated", { truncated: "true" }],
  ["labelled hacked", { label: "hacked" }],
];

// What has no answer where the score is the reward.
const APART = ["paid and wrong", "right and not paid", "longest paid"];

// `more` stands after them: a page that has the answer itself needs no link to it.
export function questions(run, { more = null, oneNumber = false } = {}) {
  const asked = QUESTIONS.filter(([name]) => !(oneNumber && APART.includes(name)));
  return h(
    "nav",
    { class: "row note", "aria-label": "Questions" },
    asked.map(([name, params]) => h("a", { href: href("find", { run, ...params }) }, name)),
    more,
  );
}
