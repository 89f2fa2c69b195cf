// How alike texts are to an embedding model, as a table of cosines.

import { post, showError } from "./api.js";

const at = (id) => document.getElementById(id);
const MOST_TEXTS = 64;
/** Colors of the style sheet, .h0 to .h6. */
const STEPS = 7;

const normalized = (vector) => {
  const length = Math.hypot(...vector);
  return vector.map((x) => x / (length || 1));
};

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

const header = (scope, number, text) => {
  const th = document.createElement("th");
  th.scope = scope;
  th.title = text;
  const said = document.createElement("span");
  said.textContent = ` ${text}`;
  if (scope === "col") said.className = "hidden";
  th.append(String(number), said);
  return th;
};

const row = (cells) => {
  const tr = document.createElement("tr");
  tr.append(...cells);
  return tr;
};

const table = (texts, cosines) => {
  const made = document.createElement("table");
  const apart = cosines.flatMap((line, i) => line.filter((_, j) => i !== j));
  const least = Math.min(1, ...apart);
  const step = (x) => Math.min(STEPS - 1, Math.max(0, Math.floor(((x - least) / (1 - least || 1)) * STEPS)));
  made.createCaption().textContent =
    `Cosine similarity; colors go from ${least.toFixed(2)}, the least alike, to 1.`;
  made.createTHead().append(row([document.createElement("td"), ...texts.map((t, i) => header("col", i + 1, t))]));
  const cell = (x) => {
    const td = document.createElement("td");
    td.className = `h${step(x)}`;
    td.textContent = x.toFixed(2);
    return td;
  };
  made.createTBody().append(...texts.map((t, i) => row([header("row", i + 1, t), ...cosines[i].map(cell)])));
  return made;
};

const mostAlike = (cosines) => {
  let best = null;
  cosines.forEach((line, i) => line.forEach((x, j) => {
    if (i < j && (best === null || x > best.x)) best = { i, j, x };
  }));
  return best ? `Most alike: ${best.i + 1} and ${best.j + 1} (${best.x.toFixed(2)}). ` : "";
};

const compare = async () => {
  const texts = at("texts").value.split("\n").map((line) => line.trim()).filter(Boolean);
  if (texts.length < 2 || texts.length > MOST_TEXTS) {
    throw new Error(`Expected 2 to ${MOST_TEXTS} texts, one in each line; found ${texts.length}.`);
  }
  const start = performance.now();
  const answer = await (await post("/v1/embeddings", { model: at("embed-model").value, input: texts })).json();
  const ms = performance.now() - start;
  const vectors = answer.data.map((entry) => normalized(entry.embedding));
  const cosines = vectors.map((a) => vectors.map((b) => dot(a, b)));
  at("matrix").replaceChildren(table(texts, cosines));
  at("matrix").hidden = false;
  return `${mostAlike(cosines)}${texts.length} texts, ${answer.usage.total_tokens} tokens, ` +
    `${vectors[0].length} elements each, ${ms.toFixed(0)} ms.`;
};

at("embed-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = event.submitter ?? at("embed-form").querySelector("button");
  at("embed-error").textContent = "";
  at("embed-status").textContent = "Embedding…";
  button.disabled = true;
  try {
    at("embed-status").textContent = await compare();
  } catch (error) {
    at("embed-status").textContent = "";
    showError("embed-error", error.message);
  }
  button.disabled = false;
});

export const startEmbed = (models) => {
  const none = models.length === 0;
  at("embed-form").querySelector("button").disabled = none;
  at("embed-status").textContent = none ? "This server has no embedding model." : "";
};
