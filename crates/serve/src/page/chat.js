// Conversations with a language model, streamed. They are kept until the browser's tab closes.

import { events, post } from "./api.js";
import { showMarkdown } from "./markdown.js";

const at = (id) => document.getElementById(id);
const [turns, message, send, stop, failure, schema] =
  ["turns", "message", "send", "stop", "chat-error", "schema"].map(at);
const STORED = "thane-chat";
const OPTIONS = ["chat-model", "system", "temperature", "top_p", "max_tokens", "seed", "schema"];
/** What was said: role, content, and name and facts of its turn. */
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

const addTurn = ({ role, name, content, facts = "" }) => {
  at("no-turns").hidden = true;
  const turn = element("article", `turn ${role}`);
  const [text, foot] = [element("div", "text"), element("div", "foot")];
  const [button, note] = [element("button", "", "Copy"), element("span", "soft facts")];
  const shown = { role, name, content, facts, turn, text, note };
  button.type = "button";
  button.addEventListener("click", () => copy(shown.content, button));
  foot.append(button, note);
  turn.append(element("h3", "", name), text, foot);
  turns.append(turn);
  showContent(shown);
  scrollDown();
  return shown;
};

/** What a model writes is Markdown, what a person writes is text. */
const showContent = ({ role, content, facts, text, note }) => {
  if (role === "assistant") showMarkdown(text, content);
  else text.textContent = content;
  note.textContent = facts;
};

/** Shows more of an answer, once for all that comes before the next frame. Whoever is at the end
 * stays there. */
const showSoon = (shown) => {
  if (shown.isDue) return;
  shown.isDue = true;
  requestAnimationFrame(() => {
    shown.isDue = false;
    const follows = isAtEnd();
    showContent(shown);
    if (follows) scrollDown();
  });
};

/** What scrolls the conversation: its list, or on narrow screens the page. */
const scroller = () => (getComputedStyle(turns).overflowY === "visible" ? document.scrollingElement : turns);

const scrollDown = () => {
  const scrolled = scroller();
  scrolled.scrollTop = scrolled.scrollHeight;
};

const isAtEnd = () => {
  const { scrollHeight, scrollTop, clientHeight } = scroller();
  return scrollHeight - scrollTop - clientHeight < 40;
};

/** Keeps the conversation for a page that is loaded again; also what was said of a running answer. */
const store = () => {
  const kept = [...conversation];
  let draft = message.value;
  if (running?.shown.content) kept.push(said(running.shown, "incomplete"));
  // A question without any answer is asked again.
  else if (running) draft ||= kept.pop().content;
  const options = Object.fromEntries(OPTIONS.map((name) => [name, at(name).value]));
  try {
    sessionStorage.setItem(STORED, JSON.stringify({ options, draft, turns: kept }));
  } catch {
    // Without room, a page that is loaded again begins anew.
    sessionStorage.removeItem(STORED);
  }
};

const restore = () => {
  const stored = sessionStorage.getItem(STORED);
  if (stored === null) return;
  const { options, draft, turns: kept } = JSON.parse(stored);
  const models = [...at("chat-model").options].map((option) => option.value);
  for (const [name, value] of Object.entries(options)) {
    if (name !== "chat-model" || models.includes(value)) at(name).value = value;
  }
  message.value = draft;
  conversation.push(...kept);
  kept.forEach(addTurn);
};

/** A turn as the conversation has it, with what is known of it. */
const said = ({ role, name, content, facts }, ...more) => (
  { role, name, content, facts: [facts, ...more].filter(Boolean).join(", ") }
);

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
  asked.messages = [...first, ...conversation.map(({ role, content }) => ({ role, content }))];
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
    seen.last = performance.now();
    seen.first ??= seen.last;
    seen.n += 1;
    shown.content += choice.delta.content;
    shown.facts = perSecond(seen.n, seen.first, seen.last);
    showSoon(shown);
  }
  return seen;
};

const setRunning = (controller, shown) => {
  running = controller && { controller, shown };
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
  conversation.push({ role: "user", name: "You", content: text });
  let asked;
  try {
    asked = fields();
  } catch (error) {
    conversation.pop();
    failure.textContent = error.message;
    return;
  }
  message.value = "";
  const question = addTurn(conversation.at(-1));
  const shown = addTurn({ role: "assistant", name: asked.model, content: "" });
  const controller = new AbortController();
  setRunning(controller, shown);
  try {
    const seen = await receive(asked, shown, controller.signal);
    shown.facts = factsOf(seen);
    if (turns.contains(shown.turn)) conversation.push(said(shown));
  } catch (error) {
    fail(error, question, shown, text);
  } finally {
    setRunning(null, shown);
    showSoon(shown);
    store();
    if (!controller.signal.aborted || !turns.contains(shown.turn)) message.focus();
  }
};

/** What was said before a stop stays; a question that was refused goes back to where it was written. */
const fail = (error, question, shown, text) => {
  const isStopped = error.name === "AbortError";
  if (!isStopped) failure.textContent = error.message;
  if (!turns.contains(shown.turn)) return;
  if (shown.content !== "") {
    const turn = said(shown, isStopped ? "stopped" : "incomplete");
    shown.facts = turn.facts;
    conversation.push(turn);
    return;
  }
  conversation.pop();
  question.turn.remove();
  shown.turn.remove();
  at("no-turns").hidden = conversation.length > 0;
  if (message.value === "") message.value = text;
};

const clear = () => {
  running?.controller.abort();
  conversation.length = 0;
  sessionStorage.removeItem(STORED);
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
stop.addEventListener("click", () => running?.controller.abort());
message.addEventListener("keydown", (event) => {
  // Enter that ends the writing of a word in Japanese or Chinese does not send.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask();
});
at("chat").addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.controller.abort();
});

// Also while an answer is written: the page may be loaded again.
addEventListener("pagehide", () => { if (conversation.length > 0 || message.value !== "") store(); });

export const startChat = (models) => {
  const none = models.length === 0;
  if (conversation.length === 0) restore();
  message.disabled = none;
  send.disabled = none || running !== null;
  at("no-turns").textContent = none ? "This server has no model that can chat." : "Ask something below.";
};

/** Shows the end of the conversation that a page which is loaded again has. */
export const showEnd = () => { if (conversation.length > 0 && !at("chat").hidden) scrollDown(); };
