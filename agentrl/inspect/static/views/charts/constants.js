// Curves that never move: named with their value, since a straight line tells no more.

import { h } from "../../dom.js";
import { formatOf, plural } from "../../format.js";
import { constantOf } from "../../scale.js";

// list: [{name, values, unit?}]. The paragraph is closed where there are many.
export function constantsNote(list) {
  if (!list.length) return null;
  const items = list.map(({ name, values, unit }) =>
    h("li", {}, h("span", { class: "mono" }, name), ` = ${formatOf(unit)(constantOf(values))}`),
  );
  return h(
    "details",
    { class: "constants", "data-key": `constants ${list[0].name}`, open: list.length <= 8 },
    h("summary", {}, `Constant, not drawn: ${plural(list.length, "curve")}`),
    h("ul", {}, items),
  );
}
