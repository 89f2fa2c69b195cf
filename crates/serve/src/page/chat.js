// Conversations with a language model, streamed.

import { events, post } from "./api.js";

const at = (id) => document.getElementById(id);
const [turns, message, send, stop, failure, schema] =
  ["turns", "message", "send", "stop", "chat-error", "schema"].map(at);
const conversation = [];
let running = null;

const element = (name, className, text) => {
  const made = document.createElement(name);
  made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};

const copy = async (text, button) => {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // Browsers give the clipboard to secure pages only: those of this machine, or with TLS.
    button.textContent = "Not allowed here";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
};

const addTurn = (role, name, content) => {
  at("no-turns").hidden = true;
  const turn = element("article", `turn ${role}`);
  const [text, foot] = [element("div", "text", content), element("div", "foot")];
  const [button, facts] = [element("button", "", "Copy"), element("span", "soft facts")];
  button.type = "button";
  button.addEventListener("click", () => copy(text.textContent, button));
  foot.append(button, facts);
  turn.append(element("h3", "", name), text, foot);
  turns.append(turn);
  scrollDown();
  return { turn, text, facts };
};

const scrollDown = () => { turns.scrollTop = turns.scrollHeight; };
const isAtEnd = () => turns.scrollHeight - turns.scrollTop - turns.clientHeight < 40;

/** The fields of a request; throws what the user has to change. */
const fields = () => {
  const asked = { model: at("chat-model").value };
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
    if (at(name).value !== "") asked[name] = Number(at(name).value);
  }
  if (schema.value.trim() !== "") {
    try {
      const parsed = JSON.parse(schema.value);
      asked.response_format = { type: "json_schema", json_schema: { name: "answer", schema: parsed, strict: true } };
    } catch (error) {
      throw new Error(`The JSON schema is not JSON: ${error.message}`);
    }
  }
  const system = at("system").value.trim();
  const first = system === "" ? [] : [{ role: "system", content: system }];
  asked.messages = [...first, ...conversation];
  return { ...asked, stream: true, stream_options: { include_usage: true } };
};

const ENDS = { length: "ended at the limit of tokens", content_filter: "filtered" };

/** Speed after the first token: what comes before it is the prompt. */
const perSecond = (n, from, to) => {
  if (n < 2 || to <= from) return "";
  return `${((n - 1) / ((to - from) / 1000)).toFixed(1)} tokens/s`;
};

const factsOf = ({ usage, reason, start, first, last }) => {
  const { prompt_tokens: prompt, completion_tokens: answer, prompt_tokens_details: details } = usage;
  const cached = details?.cached_tokens ? ` (${details.cached_tokens} cached)` : "";
  const facts = [
    `prompt ${prompt} tokens${cached}`, `answer ${answer} tokens`, perSecond(answer, first, last),
    first === undefined ? "" : `first after ${((first - start) / 1000).toFixed(2)} s`, ENDS[reason] ?? "",
  ];
  return facts.filter(Boolean).join(", ");
};

/** Streams an answer into a turn; returns what is known of it. */
const receive = async (asked, shown, signal) => {
  const seen = { start: performance.now(), n: 0 };
  const response = await post("/v1/chat/completions", asked, signal);
  for await (const event of events(response)) {
    if (event.usage) seen.usage = event.usage;
    const [choice] = event.choices;
    if (!choice) continue;
    seen.reason = choice.finish_reason ?? seen.reason;
    if (!choice.delta.content) continue;
    const follows = isAtEnd();
    seen.last = performance.now();
    seen.first ??= seen.last;
    seen.n += 1;
    shown.text.append(choice.delta.content);
    shown.facts.textContent = perSecond(seen.n, seen.first, seen.last);
    if (follows) scrollDown();
  }
  return seen;
};

const setRunning = (controller, shown) => {
  running = controller;
  stop.hidden = controller === null;
  send.disabled = controller !== null;
  const isBusy = String(controller !== null);
  // The answer is read out once it is complete, not piece by piece.
  turns.setAttribute("aria-busy", isBusy);
  shown.turn.setAttribute("aria-busy", isBusy);
};

const ask = async () => {
  const text = message.value.trim();
  if (running || text === "") return;
  if (!at("chat-options").reportValidity()) return;
  failure.textContent = "";
  conversation.push({ role: "user", content: text });
  let asked;
  try {
    asked = fields();
  } catch (error) {
    conversation.pop();
    failure.textContent = error.message;
    return;
  }
  message.value = "";
  const question = addTurn("user", "You", text);
  const shown = addTurn("assistant", asked.model, "");
  const controller = new AbortController();
  setRunning(controller, shown);
  try {
    const seen = await receive(asked, shown, controller.signal);
    conversation.push({ role: "assistant", content: shown.text.textContent });
    shown.facts.textContent = factsOf(seen);
  } catch (error) {
    fail(error, question, shown, text);
  } finally {
    setRunning(null, shown);
    if (!controller.signal.aborted || !turns.contains(shown.turn)) message.focus();
  }
};

/** What was said before a stop stays; a question that was refused goes back to where it was written. */
const fail = (error, question, shown, text) => {
  const isStopped = error.name === "AbortError";
  if (!isStopped) failure.textContent = error.message;
  if (shown.text.textContent !== "") {
    conversation.push({ role: "assistant", content: shown.text.textContent });
    const facts = [shown.facts.textContent, isStopped ? "stopped" : "incomplete"];
    shown.facts.textContent = facts.filter(Boolean).join(", ");
    return;
  }
  conversation.pop();
  question.turn.remove();
  shown.turn.remove();
  at("no-turns").hidden = conversation.length > 0;
  if (message.value === "") message.value = text;
};

const clear = () => {
  running?.abort();
  conversation.length = 0;
  turns.replaceChildren(at("no-turns"));
  at("no-turns").hidden = false;
  failure.textContent = "";
  message.focus();
};

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
at("chat-options").addEventListener("submit", (event) => event.preventDefault());
at("new-chat").addEventListener("click", clear);
stop.addEventListener("click", () => running?.abort());
message.addEventListener("keydown", (event) => {
  // Enter that ends the writing of a word in Japanese or Chinese does not send.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask();
});
at("chat").addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});

export const startChat = (models) => {
  const none = models.length === 0;
  message.disabled = none;
  send.disabled = none || running !== null;
  at("no-turns").textContent = none ? "This server has no language model." : "Ask something below.";
};
