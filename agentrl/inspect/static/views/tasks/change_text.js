// The change of a score paired by task, in words that say whether it may be chance.

import { plural, signed } from "../../format.js";

export function intervalText(change) {
  if (change.low === null) return signed(change.mean);
  return `${signed(change.mean)} [${signed(change.low)}, ${signed(change.high)}]`;
}

export function changeLevel(change) {
  if (!change || change.low === null) return "";
  return change.low > 0 ? "good" : change.high < 0 ? "fail" : "";
}

export function changeWords(change) {
  if (change.low === null)
    return `over ${plural(change.tasks, "task")}; too few differ for an interval`;
  const said =
    change.low > 0
      ? "a gain: the interval excludes 0"
      : change.high < 0
        ? "a loss: the interval excludes 0"
        : "may be chance: the interval contains 0";
  return `95 % interval over ${plural(change.tasks, "task")}, paired by task; ${said}`;
}
