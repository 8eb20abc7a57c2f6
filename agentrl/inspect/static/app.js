// One address, one view: loads what the address names, draws it, keeps it live.

import { get, isExport } from "./api.js";
import { empty, h } from "./dom.js";
import { moveItem, setViewKeys, showHelp, startKeys } from "./keys.js";
import { go, href, parse, replace } from "./router.js";
import { startTheme, turnTheme } from "./theme.js";
import { setEndings } from "./views/parts.js";

// A view: load(params, signal) asks, draw(data, params) gives {node, title, crumbs, up, keys};
// `top` is what the first view is called in the crumbs.
let views = {};
let top = "";
let endingsKnown;
const POLL_MS = 2000;
// What has not changed for a minute and does not run is asked for less often.
const QUIET_MS = 10_000;
const QUIET_AFTER = 30;
// A view that is quick to answer never shows that it was waited for.
const WAIT_MS = 150;

const main = document.getElementById("main");
let shown = { hash: null, up: null, revision: null, run: null, live: false, pulse: null };
let listed = null;
let quiet = 0;
let asking = new AbortController();

async function show({ scroll = 0, again = false } = {}) {
  const hash = location.hash;
  const { view, params } = parse(hash);
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  const waiting = setTimeout(() => again || main.replaceChildren(skeleton()), WAIT_MS);
  if (!again) document.getElementById("alert").replaceChildren();
  let drawn;
  try {
    if (!views[view])
      throw new Error(`There is no view "${view}". Views: ${Object.keys(views).join(", ")}.`);
    const [data] = await Promise.all([views[view].load(params, signal), endingsKnown]);
    drawn = views[view].draw(data, params);
  } catch (error) {
    if (error.name === "AbortError") return;
    if (again) return alarm(error.message);
    drawn = trouble(error, view, params);
  } finally {
    clearTimeout(waiting);
  }
  if (signal.aborted) return;
  put(drawn, hash, params, again ? scrollY : scroll, again);
}

function put(drawn, hash, params, scroll, again) {
  const kept = again ? keep() : null;
  main.replaceChildren(drawn.node);
  document.title = `${drawn.title} - agentrl`;
  document.getElementById("crumbs").replaceChildren(...crumbs(drawn.crumbs ?? []));
  setViewKeys(drawn.keys);
  shown = {
    hash,
    up: drawn.up && !views[parse(drawn.up).view] ? href("runs") : (drawn.up ?? null),
    // Of what was drawn, where the view knows: the run may have written since.
    revision: drawn.revision ?? shown.revision,
    // What cannot be shown says why itself.
    run: drawn.failed ? null : (params.run ?? null),
    live: Boolean(drawn.live),
    pulse: drawn.pulse ?? null,
  };
  if (kept) restore(kept);
  else main.focus({ preventScroll: true });
  // A chart takes its size when it is laid out; only then is the page as tall as it was.
  requestAnimationFrame(() => scrollTo(0, scroll));
  main.dataset.ready = hash;
  drawn.after?.();
}

// What a reader had opened and where the focus was, over a redraw of the same view.
function keep() {
  const open = [...main.querySelectorAll("details[data-key]")].map((node) => [
    node.dataset.key,
    node.open,
  ]);
  const aside = [...main.querySelectorAll(".scroll")].map((node) => node.scrollLeft);
  return { open: new Map(open), focus: document.activeElement?.dataset?.key, aside };
}

function restore({ open, focus, aside }) {
  for (const node of main.querySelectorAll("details[data-key]")) {
    if (open.has(node.dataset.key)) node.open = open.get(node.dataset.key);
  }
  main.querySelectorAll(".scroll").forEach((node, i) => (node.scrollLeft = aside[i] ?? 0));
  if (focus)
    main.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
}

// An exported page lacks the views in between, so they are named without a link.
function crumbs(parts) {
  return parts.map(([text, to], at) => {
    if (at === parts.length - 1) return h("span", { "aria-current": "page" }, text);
    const view = parse(to).view;
    return views[view] ? h("a", { href: to }, view === "runs" ? top : text) : h("span", {}, text);
  });
}

function skeleton() {
  return h(
    "div",
    { class: "skeleton", role: "status", "aria-label": "Loading" },
    [1, 2, 3].map(() => h("div")),
  );
}

function trouble(error, view, params) {
  const up = params.run && view !== "run" ? href("run", { run: params.run }) : href("runs");
  return {
    title: "Not shown",
    failed: true,
    crumbs: [
      ["runs", href("runs")],
      ["not shown", null],
    ],
    up,
    node: h(
      "section",
      { class: "page" },
      empty("This cannot be shown", error.message),
      h(
        "p",
        { class: "row centred" },
        h("button", { onclick: () => show() }, "Try again"),
        h("a", { class: "button", href: up }, "One level up"),
        h("a", { class: "button", href: href("runs") }, "All runs"),
      ),
    ),
  };
}

// Said once: a screen reader would read it again with each look.
function alarm(text) {
  const box = document.getElementById("alert");
  if (box.textContent !== text) box.replaceChildren(...(text ? [h("p", {}, text)] : []));
}

// A redraw would take away what the reader has selected or holds.
function held() {
  const selection = getSelection();
  return (
    (!selection.isCollapsed && main.contains(selection.anchorNode)) ||
    Boolean(main.querySelector(":active, select:focus, input[type=search]:focus"))
  );
}

// The run may be written while it is looked at: ask cheaply, redraw when there is more to see.
async function poll() {
  const lamp = document.getElementById("live");
  const { run, live, hash } = shown;
  // What does not change is asked for, too: the page says when its server is gone.
  // Nobody looks at a hidden page; it is asked for at once when it is shown again.
  if (!(live || run) || document.hidden) return;
  try {
    // The list of runs has no revision: it is short, so it is compared as a whole.
    const answer = await get(run ? "pulse" : "runs", run ? { run } : {});
    const now = run ? answer.revision : JSON.stringify(answer);
    alarm("");
    if (shown.hash !== hash) return;
    const before = run ? shown.revision : listed;
    quiet = now !== before || answer.live ? 0 : quiet + 1;
    shown.pulse?.(answer);
    const changed = live && before !== null && now !== before;
    if (changed && held()) {
      lamp.textContent = "there is more; drawn when nothing is selected";
      return;
    }
    if (run) shown.revision = now;
    else listed = now;
    if (changed) {
      lamp.textContent = "updated";
      lamp.classList.add("beat");
      setTimeout(() => lamp.classList.remove("beat"), 900);
      await show({ again: true });
    }
  } catch (error) {
    const gone = run && error.status === 404;
    quiet++;
    alarm(gone ? `The folder of run "${run}" is gone; this is how it was.` : error.message);
  }
}

function watch() {
  let timer;
  const beat = () => {
    clearTimeout(timer);
    poll().finally(() => (timer = setTimeout(beat, quiet > QUIET_AFTER ? QUIET_MS : POLL_MS)));
  };
  document.addEventListener("visibilitychange", () => {
    quiet = 0;
    if (!document.hidden) beat();
  });
  beat();
}

export function start(given, name) {
  [views, top] = [given, name];
  // Where the server does not answer, the view says so.
  endingsKnown = get("endings").then(setEndings, () => {});
  history.scrollRestoration = "manual";
  if (new URLSearchParams(location.search).has("token")) {
    // The cookie is set by now; the address is likely to be copied.
    history.replaceState(null, "", `${location.pathname}${location.hash}`);
  }
  let back = null;
  addEventListener("popstate", (event) => (back = event.state));
  addEventListener("hashchange", () => {
    if (location.hash === "#main") return;
    if (shown.run !== parse().params.run) shown.revision = null;
    show({ scroll: back?.y ?? 0 });
    back = null;
  });
  addEventListener("scrollend", () => history.replaceState({ y: scrollY }, ""));
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  document
    .getElementById("tools")
    .append(
      views.find ? h("button", { class: "icon", title: "Find (/)", onclick: openFind }, "Find") : "",
      h(
        "button",
        {
          class: "icon",
          id: "copy",
          title: "Copy the address of what is shown (c)",
          "aria-live": "polite",
          onclick: copyLink,
        },
        copyText(),
      ),
      startTheme(),
      h(
        "button",
        { class: "icon", title: "Keys (?)", "aria-label": "Keys", onclick: showHelp },
        "?",
      ),
    );
  startKeys({
    j: () => moveItem(1),
    k: () => moveItem(-1),
    u: () => shown.up && (location.hash = shown.up),
    r: () => go("runs"),
    c: copyLink,
    d: turnTheme,
    "/": openFind,
    "?": showHelp,
  });
  openOnlyRun().then(() => show());
  if (!isExport) watch();
}

// An address without a view, as the command line prints it, means the run where there is one alone.
async function openOnlyRun() {
  if (isExport || location.hash) return;
  const runs = await get("runs").catch(() => []); // where nobody answers, the view says so
  if (runs.length === 1) replace("run", { run: runs[0].id });
}

// The address names the whole view, down to the token that is looked at.
async function copyLink() {
  const button = document.getElementById("copy");
  let said = "Copied";
  try {
    await navigator.clipboard.writeText(location.href);
  } catch {
    // Without https a browser may refuse; the address bar has it, too.
    said = "Copy it from the address bar";
  }
  button.replaceChildren(said);
  setTimeout(() => button.replaceChildren(...copyText()), 1500);
}

// Short where the window is narrow.
function copyText() {
  return [document.createTextNode("Copy"), h("span", { class: "long" }, " link")];
}

function openFind() {
  if (!views.find) return;
  const { view, params } = parse();
  const box = document.getElementById("find-text");
  if (view === "find" && box) box.focus();
  else go("find", { run: params.run });
}
