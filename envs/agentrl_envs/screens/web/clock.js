// Runs before the scripts of a page: time stands still but for `agentrlClock.advance(ms)`, so that
// what a page shows depends on what was done to it and not on how fast the machine is.
(() => {
  const RealDate = Date;
  const START = 1767607200000; // Monday, 5 January 2026, 10:00 UTC
  let now = 0;
  let last = 0;
  const timers = new Map();

  const add = (call, delay, args, every) => {
    if (typeof call !== "function") {
      call = new Function(String(call));
    }
    delay = Math.max(1, Number(delay) || 0);
    last += 1;
    timers.set(last, { call, args, at: now + delay, every: every ? delay : 0, order: last });
    return last;
  };
  const clear = (id) => { timers.delete(id); };

  window.setTimeout = (call, delay, ...args) => add(call, delay, args, false);
  window.setInterval = (call, delay, ...args) => add(call, delay, args, true);
  window.requestAnimationFrame = (call) => add(() => call(now), 16, [], false);
  window.clearTimeout = window.clearInterval = window.cancelAnimationFrame = clear;
  performance.now = () => now;

  class StillDate extends RealDate {
    constructor(...args) {
      if (args.length === 0) {
        super(START + now);
      } else {
        super(...args);
      }
    }
    static now() { return START + now; }
  }
  window.Date = StillDate;

  // Random numbers that are drawn before the page is given its seed.
  let state = 1;
  Math.random = () => {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
    return state / 0x80000000;
  };

  const advance = (ms) => {
    const end = now + ms;
    for (let calls = 0; calls < 10000; calls += 1) {
      let next = null;
      for (const [id, timer] of timers) {
        if (timer.at <= end && (next === null || timer.at < next[1].at
            || (timer.at === next[1].at && timer.order < next[1].order))) {
          next = [id, timer];
        }
      }
      if (next === null) {
        break;
      }
      const [id, timer] = next;
      now = Math.max(now, timer.at);
      if (timer.every) {
        timer.at = now + timer.every;
      } else {
        timers.delete(id);
      }
      try {
        timer.call(...timer.args);
      } catch (error) {
        console.error(error);
      }
    }
    now = end;
  };
  window.agentrlClock = { advance };

  // Dialogs would wait for a user, and nothing may open another page or print.
  window.alert = window.print = () => undefined;
  window.confirm = () => true;
  window.prompt = () => null;
  window.open = () => null;

  const still = () => {
    const style = document.createElement("style");
    style.textContent = "*, *::before, *::after { animation: none !important; "
      + "transition: none !important; caret-color: transparent !important; }";
    document.documentElement.appendChild(style);
  };
  document.addEventListener("DOMContentLoaded", still);
})();
