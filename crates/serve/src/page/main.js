// The tabs, the key, and the models that the views have in common.

import { hasKey, request, setKey, showError } from "./api.js";
import { startAudit } from "./audit.js";
import { showEnd, startChat } from "./chat.js";
import { startEmbed } from "./embed.js";
import { watch } from "./status.js";

const at = (id) => document.getElementById(id);
const tabs = [...at("tabs").children];
const views = tabs.map((tab) => at(tab.getAttribute("aria-controls")));
const keyForm = at("key-form");
let isReady = false;

const select = (i) => {
  tabs.forEach((tab, j) => {
    tab.setAttribute("aria-selected", String(i === j));
    tab.tabIndex = i === j ? 0 : -1;
    views[j].hidden = i !== j || !isReady;
  });
  history.replaceState(null, "", `#${views[i].id}`);
  watch(isReady);
};

const selected = () => tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true");

const move = { ArrowRight: (i) => i + 1, ArrowLeft: (i) => i - 1, Home: () => 0, End: () => tabs.length - 1 };

tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => select(i));
  tab.addEventListener("keydown", (event) => {
    if (!(event.key in move)) return;
    event.preventDefault();
    const next = (move[event.key](i) + tabs.length) % tabs.length;
    select(next);
    tabs[next].focus();
  });
});

const fill = (list, models) => {
  list.replaceChildren(...models.map((model) => new Option(model.id, model.id)));
};

const load = async () => {
  at("page-error").textContent = "";
  let models;
  try {
    models = (await (await request("/v1/models")).json()).data;
  } catch (error) {
    if (error.status !== 401) showError("page-error", error.message);
    else if (hasKey()) at("key-error").textContent = error.message;
    return;
  }
  keyForm.hidden = true;
  at("change-key").hidden = !hasKey();
  const of = (task) => models.filter((model) => model.task === task);
  // A model without a chat template continues texts, but cannot chat. One that was not loaded yet may.
  const chats = of("generate").filter((model) => model.chat !== false);
  fill(at("chat-model"), chats);
  fill(at("embed-model"), of("embed"));
  startChat(chats);
  startEmbed(of("embed"));
  isReady = true;
  select(selected());
  showEnd();
};

const askKey = () => {
  isReady = false;
  keyForm.hidden = false;
  select(selected());
  at("key").focus();
};

document.addEventListener("key-refused", askKey);
at("change-key").addEventListener("click", askKey);
keyForm.addEventListener("submit", (event) => {
  event.preventDefault();
  const key = at("key").value.trim();
  at("key-error").textContent = "";
  if (/[^\x21-\x7e]/.test(key)) {
    at("key-error").textContent = "Expected a key of letters, digits and signs without spaces.";
    return;
  }
  setKey(key);
  at("key").value = "";
  load();
});

if (matchMedia("(max-width: 48rem)").matches) at("system-box").open = false;
startAudit();
select(Math.max(0, views.findIndex((view) => `#${view.id}` === location.hash)));
load();
