// Talks to the server: JSON, and server-sent events. Answers are text, and only ever shown as text.

const KEPT = "dllmark token"; // for this tab, so that a reload does not ask again; never in an address

export const LOST = "The server does not answer. Is it still running?";

export function useToken(token) {
  if (token) sessionStorage.setItem(KEPT, token);
  else sessionStorage.removeItem(KEPT);
}

export const hasToken = () => sessionStorage.getItem(KEPT) !== null;

/** What the server refused, with the HTTP status; 0 where it did not answer at all. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  const headers = { "Content-Type": "application/json" };
  const token = sessionStorage.getItem(KEPT);
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(LOST, 0);
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new Refused(body?.error?.message ?? `The server answered ${response.status}.`, response.status);
}

export async function get(path) {
  return (await ask(path)).json();
}

export async function post(path, body, signal) {
  return (await ask(path, { method: "POST", body: JSON.stringify(body), signal })).json();
}

/** Yields {name, data} for each event of a stream that ends with `end`; one that breaks off is lost. */
export async function* stream(path, body, signal) {
  const response = await ask(path, {
    method: "POST",
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      return { done: true };
    });
    if (done) throw new Refused("The connection broke off. Is the server still running?", 0);
    buffer += value;
    const events = buffer.split("\n\n");
    buffer = events.pop();
    for (const event of events) {
      const fields = Object.fromEntries(event.split("\n").map((line) => line.split(/: (.*)/s)));
      if (!fields.data) continue; // a comment
      const data = JSON.parse(fields.data);
      if (fields.event === "error") throw new Refused(data.error.message, 500);
      yield { name: fields.event, data };
      if (fields.event === "end") return;
    }
  }
}
