// Questions kept in this browser. Each is an address; nothing of a run is stored.

import { h } from "../dom.js";
import { href, parse } from "../router.js";

const KEY = "agentrl-saved";
const MOST = 50;

function read() {
  try {
    const list = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(list)
      ? list.filter((one) => typeof one?.to === "string" && one.to.startsWith("#/"))
      : [];
  } catch {
    return [];
  }
}

function write(list) {
  try {
    localStorage.setItem(KEY, JSON.stringify(list.slice(-MOST)));
  } catch {
    // Without storage the links last as long as the page.
  }
}

// The question on the page may change without a new view: `asked` on the document says so.
export function saved() {
  const box = h("div", { class: "row" });
  const fill = () => {
    const { params } = parse();
    const here = href("find", params);
    const asked = Object.entries(params).filter(
      ([name, value]) => !["run", "offset"].includes(name) && value,
    );
    const list = read();
    const there = list.some((one) => one.to === here);
    const keep = () => {
      write([...list, { to: here, name: nameOf(asked, params.run) }]);
      fill();
    };
    box.replaceChildren(
      h(
        "ul",
        { class: "saved", "aria-label": "Saved" },
        list.map((one) =>
          h(
            "li",
            {},
            h("a", { href: one.to, title: one.name }, one.name),
            h(
              "button",
              {
                "aria-label": `Delete ${one.name}`,
                onclick: () => {
                  write(list.filter((other) => other !== one));
                  fill();
                },
              },
              "\u00d7",
            ),
          ),
        ),
      ),
      ...(asked.length && !there
        ? [h("button", { class: "quiet", onclick: keep, "data-key": "save" }, "Save this link")]
        : []),
    );
    box.hidden = !box.querySelector("li, .quiet");
  };
  const again = () => (box.isConnected ? fill() : document.removeEventListener("asked", again));
  document.addEventListener("asked", again);
  fill();
  return box;
}

function nameOf(asked, run) {
  const text = asked.map(([name, value]) =>
    name === "q" ? `"${value}"` : name === "sql" ? value : `${name.replaceAll("_", " ")} ${value}`,
  );
  return `${text.join(", ")}${run ? ` in ${run}` : ""}`.slice(0, 160);
}
