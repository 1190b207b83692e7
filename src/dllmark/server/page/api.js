// Talks to the server: JSON, and server-sent events. Answers are text, and only ever shown as text.

let token = "";

export function useToken(given) {
  token = given;
}

/** What the server refused, with the HTTP status. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  const headers = { "Content-Type": "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer. Is it still running?", 0);
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

/** Yields {name, data} for each event of a stream. */
export async function* stream(path, body, signal) {
  const response = await ask(path, {
    method: "POST",
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    const events = buffer.split("\n\n");
    buffer = events.pop();
    for (const event of events) {
      const fields = Object.fromEntries(event.split("\n").map((line) => line.split(/: (.*)/s)));
      if (fields.data) yield { name: fields.event, data: JSON.parse(fields.data) }; // else a comment
    }
  }
}
