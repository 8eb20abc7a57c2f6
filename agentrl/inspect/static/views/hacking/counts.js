// Counts within a sentence, each a link to exactly the rollouts that it counts.

import { h } from "../../dom.js";
import { inSigns } from "../../format.js";
import { href } from "../../router.js";

// Gives a function that links a text; texts are given in the order of the counts.
export function linker(links, run) {
  const rest = [...links];
  return (text) => {
    const parts = [];
    let at = 0;
    while (rest.length) {
      const { text: count, find } = rest[0];
      const begin = text.indexOf(count, at);
      if (begin < 0) break;
      rest.shift();
      const key = `count ${links.length - rest.length}`;
      parts.push(inSigns(text.slice(at, begin)));
      parts.push(find ? h("a", { href: href("find", { run, ...find }), "data-key": key }, count) : count);
      at = begin + count.length;
    }
    return [...parts, inSigns(text.slice(at))];
  };
}
