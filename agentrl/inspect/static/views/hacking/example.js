// The rollout to check the answer by: one that was paid and is wrong, else the best paid one.

import { num } from "../../format.js";
import { href } from "../../router.js";

export function exampleAddress(run, { kind, step, rollout_id: rollout }) {
  return href("rollout", { run, kind, step, rollout });
}

export function exampleText({ reward, score, step, wrong }) {
  const values = `reward ${num(reward)}${score === null ? "" : `, score ${num(score)}`}`;
  return `Open one that was ${wrong ? "paid and is wrong" : "paid most"}: step ${num(step)}, ${values}`;
}
