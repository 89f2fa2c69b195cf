// What the server does, read from /metrics while the page is visible.

import { request } from "./api.js";
import { chart } from "./chart.js";

const at = (id) => document.getElementById(id);
const [EVERY_MS, SECONDS] = [2000, 120];
const samples = [];
let timer = null;

const charts = [
  { ...chart("Requests", ["running", "waiting"], SECONDS), values: (s) => [s.running, s.waiting] },
  {
    ...chart("Tokens per second", ["generated", "prompt, without cached"], SECONDS),
    values: (s, before) => [rate(s, before, "generated"), rate(s, before, "prompt")],
  },
  { ...chart("Memory of the process, in MB", ["resident"], SECONDS), values: (s) => [s.memory / 1e6] },
];
at("charts").append(...charts.map((c) => c.figure));

const rate = (now, before, key) => (before ? Math.max(0, (now[key] - before[key]) / (now.time - before.time)) : 0);

/** Lines of Prometheus' text format, as { name, labels, value }. */
const parse = (text) => text.split("\n").filter((line) => line !== "" && !line.startsWith("#")).map((line) => {
  const [, name, inner = "", value] = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line);
  const labels = {};
  for (const [, key, quoted] of inner.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
    labels[key] = quoted.replaceAll(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
  }
  return { name, labels, value: Number(value.replace("+Inf", "Infinity")) };
});

/** A percentile of a histogram, as Prometheus' histogram_quantile: even within a bucket. */
const percentile = (buckets, p) => {
  const wanted = p * (buckets.at(-1)?.value ?? 0);
  const i = buckets.findIndex((bucket) => bucket.value >= wanted);
  if (i < 0 || wanted === 0) return null;
  const [from, before] = i > 0 ? [Number(buckets[i - 1].labels.le), buckets[i - 1].value] : [0, 0];
  if (buckets[i].labels.le === "+Inf") return from;
  return from + ((wanted - before) / (buckets[i].value - before)) * (Number(buckets[i].labels.le) - from);
};

const twoDigits = (x) => String(Number(x.toPrecision(2)));
const time = (seconds) => {
  if (seconds === null) return "";
  return seconds < 1 ? `${twoDigits(seconds * 1e3)} ms` : `${twoDigits(seconds)} s`;
};

const NAMES = ["requests running", "requests waiting", "KV caches in use", "requests completed", "requests failed",
  "requests cancelled", "requests refused", "prompt tokens", "of them cached", "generated tokens",
  "time to first token, p50 and p95", "time of a step, p50 and p95", "time to vectors, p50 and p95"];

const valuesOf = (model, lines) => {
  const own = lines.filter((line) => line.labels.model === model);
  const get = (name, outcome) => own.find((l) => l.name === name && l.labels.outcome === outcome)?.value ?? "";
  const times = (name) => {
    const buckets = own.filter((line) => line.name === `${name}_bucket`);
    return [0.5, 0.95].map((p) => time(percentile(buckets, p))).filter(Boolean).join(" and ");
  };
  const slots = get("thane_cache_slots");
  return [
    get("thane_requests_running"), get("thane_requests_waiting"),
    slots === "" ? "" : `${get("thane_cache_slots_in_use")} of ${slots}`,
    ...["completed", "failed", "cancelled", "refused"].map((o) => get("thane_requests_total", o)),
    get("thane_prompt_tokens_total"), get("thane_prompt_tokens_cached_total"), get("thane_generated_tokens_total"),
    times("thane_time_to_first_token_seconds"), times("thane_step_seconds"), times("thane_embed_seconds"),
  ];
};

const cell = (name, text, scope) => {
  const made = document.createElement(name);
  made.textContent = text;
  if (scope) made.scope = scope;
  return made;
};

/** A column for each model: their names are long, and models are few. */
const fillTable = (lines) => {
  const models = [...new Set(lines.map((line) => line.labels.model).filter(Boolean))];
  const rows = models.map((model) => valuesOf(model, lines));
  const tr = (cells) => {
    const made = document.createElement("tr");
    made.append(...cells);
    return made;
  };
  const head = document.createElement("thead");
  head.append(tr([cell("td", ""), ...models.map((model) => cell("th", model, "col"))]));
  const body = document.createElement("tbody");
  body.append(...NAMES.map((name, i) => tr([cell("th", name, "row"), ...rows.map((row) => cell("td", row[i]))])));
  at("models").replaceChildren(head, body);
};

const sample = (lines) => {
  const sum = (name) => lines.filter((l) => l.name === name).reduce((total, l) => total + l.value, 0);
  return {
    time: performance.now() / 1000,
    running: sum("thane_requests_running"),
    waiting: sum("thane_requests_waiting"),
    generated: sum("thane_generated_tokens_total"),
    prompt: sum("thane_prompt_tokens_total") - sum("thane_prompt_tokens_cached_total"),
    memory: sum("process_resident_memory_bytes"),
  };
};

const show = (lines) => {
  fillTable(lines);
  for (const { draw, values } of charts) {
    draw(samples.map((s, i) => [s.time, values(s, samples[i - 1])]));
  }
};

const read = async () => {
  if (document.hidden) return;
  try {
    const lines = parse(await (await request("/metrics")).text());
    samples.push(sample(lines));
    while (samples[0].time < samples.at(-1).time - SECONDS) samples.shift();
    if (!at("status").hidden) show(lines);
    at("status-error").textContent = "";
  } catch (error) {
    at("status-error").textContent = error.message;
  }
};

/** Reads now, and from now on; `false` stops. The charts grow also while another view is shown. */
export const watch = (isOn) => {
  clearInterval(timer);
  if (!isOn) return;
  read();
  timer = setInterval(read, EVERY_MS);
};
