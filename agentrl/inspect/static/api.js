// Asks the server that sent this page, and nobody else. An exported page has its answers inside:
// each is a script element of type JSON, and `held` lists them as [name, parameters, element].

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const held = heldAnswers();
// Path that a proxy has before this page.
const base = document.querySelector('meta[name="base-path"]')?.content ?? "";
export const isExport = held !== null;

function heldAnswers() {
  const list = document.getElementById("held");
  if (!list) return null;
  const entries = JSON.parse(list.textContent);
  return new Map(entries.map(([name, params, id]) => [address(name, params), id]));
}

function address(name, params) {
  const query = new URLSearchParams();
  for (const key of Object.keys(params).sort()) {
    const value = params[key];
    if (value !== null && value !== undefined && value !== "") query.set(key, value);
  }
  const text = query.toString();
  return `${name}${text ? `?${text}` : ""}`;
}

// Whether an answer can be had: all of them from a server, some from an exported page.
export function has(name, params) {
  return !held || held.has(address(name, params));
}

export async function get(name, params = {}, signal) {
  if (!held) return ask(address(name, params), signal);
  const id = held.get(address(name, params));
  if (id === undefined) throw new ApiError("This file does not hold it; it holds some rollouts.", 404);
  return JSON.parse(document.getElementById(id).textContent);
}

export async function post(name, data) {
  return ask(name, undefined, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(data),
  });
}

async function ask(question, signal, more = {}) {
  let answer;
  try {
    answer = await fetch(`${base}/api/${question}`, { signal, cache: "no-store", ...more });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is `agentrl inspect` still running?", 0);
  }
  const body = await answer.text();
  let data;
  try {
    data = JSON.parse(body);
  } catch {
    throw new ApiError(`The server's answer (status ${answer.status}) is not JSON.`, answer.status);
  }
  if (!answer.ok) {
    throw new ApiError(data.error ?? data.detail ?? `Status ${answer.status}.`, answer.status);
  }
  return data;
}

// Source of an image of a run; null where this file does not hold it.
export function imageAddress(run, digest) {
  const question = address("image", { run, digest });
  if (!held) return `${base}/api/${question}`;
  const id = held.get(question);
  return id === undefined ? null : JSON.parse(document.getElementById(id).textContent);
}

export function exportAddress(params) {
  return `${base}/api/export?${new URLSearchParams(params)}`;
}
