// Requests to this server. Its key, if it has one, is kept until the browser's tab closes.

const STORED = "thane-key";

export const setKey = (key) => sessionStorage.setItem(STORED, key);
export const hasKey = () => sessionStorage.getItem(STORED) !== null;

/** An answer that is an error. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const messageOf = async (response) => {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text || `The server answered with status ${response.status}.`;
  }
};

/** Sends a request with the key; throws what is not a success, in words for the user. */
export const request = async (path, options = {}) => {
  const headers = { ...options.headers };
  if (hasKey()) headers.Authorization = `Bearer ${sessionStorage.getItem(STORED)}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server cannot be reached: is it still running?");
  }
  if (response.ok) return response;
  const refusal = new Refusal(response.status, await messageOf(response));
  if (response.status === 401) document.dispatchEvent(new Event("key-refused"));
  throw refusal;
};

export const post = (path, fields, signal) => request(path, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(fields), signal,
});

/** The objects of a stream of server-sent events, up to `[DONE]`. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("The connection ended before the answer was complete.");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (!line.startsWith("data: ")) continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

/** Shows an error, where the user sees it. */
export const showError = (id, message) => {
  const place = document.getElementById(id);
  place.textContent = message;
  place.scrollIntoView({ block: "nearest" });
};
