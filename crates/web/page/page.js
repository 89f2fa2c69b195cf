// The page: chooses files and targets, audits in a worker, and shows the report in a frame.

import { about, audit, buckets } from "./index.js";

const at = (id) => document.getElementById(id);
const element = (name, text, properties = {}) => Object.assign(document.createElement(name), { textContent: text }, properties);
const size = (bytes) =>
  bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(1)} GB`;

let tables = { chips: [], releases: [] };
/** What is audited next: [path, file] pairs, or one file. */
let chosen = null;
let stopping = null;
let saved = [];

const showError = (id, error) => { at(id).textContent = error?.message ?? error ?? ""; };

const choose = (files, name) => {
  const all = files.filter(([path]) => !/(^|\/)\.DS_Store$/.test(path));
  chosen = all.length === 1 ? all[0][1] : all;
  if (all.length === 1 && !/\.(zip|mil)$/i.test(all[0][0])) chosen = all;
  const bytes = all.reduce((sum, [, file]) => sum + file.size, 0);
  at("chosen").textContent = all.length === 0
    ? "Nothing is chosen yet: the folder has no files."
    : `Chosen: ${name}, ${all.length === 1 ? "1 file" : `${all.length} files`}, ${size(bytes)}`;
  if (all.length === 0) chosen = null;
  showError("error", "");
};

/** The files below what was dropped. A folder gives its entries in parts, until a part is empty. */
const walk = async (entry, path) => {
  if (entry.isFile) return [[path, await new Promise((done, fail) => entry.file(done, fail))]];
  const reader = entry.createReader();
  const files = [];
  for (;;) {
    const part = await new Promise((done, fail) => reader.readEntries(done, fail));
    if (part.length === 0) return files;
    for (const inner of part) files.push(...(await walk(inner, `${path}/${inner.name}`)));
  }
};

const startDrop = () => {
  const [drop, archive, folder] = [at("drop"), at("archive"), at("folder")];
  const over = (is) => drop.classList.toggle("over", is);
  // A model that misses the frame must not replace the page.
  for (const name of ["dragover", "drop"]) addEventListener(name, (event) => event.preventDefault());
  addEventListener("dragenter", () => over(true));
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) over(false); });
  addEventListener("drop", async (event) => {
    over(false);
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    if (entries.length === 0) return showError("error", "Expected files or a folder, found something else: drop a model from the file manager.");
    try {
      const files = (await Promise.all(entries.map((entry) => walk(entry, entry.name)))).flat();
      choose(files, entries.map((entry) => entry.name).join(", "));
      archive.value = folder.value = "";
    } catch (error) {
      showError("error", `The files could not be read: ${error.message}`);
    }
  });
  archive.addEventListener("change", () => {
    if (archive.files.length === 0) return;
    folder.value = "";
    choose([...archive.files].map((file) => [file.name, file]), archive.files[0].name);
  });
  folder.addEventListener("change", () => {
    if (folder.files.length === 0) return;
    archive.value = "";
    const files = [...folder.files].map((file) => [file.webkitRelativePath || file.name, file]);
    choose(files, files[0][0].split("/")[0]);
  });
};

const startTargets = () => {
  const usual = tables.chips.find((chip) => tables.usual.startsWith(`${chip.name}+`));
  at("usual").textContent = usual?.marketing ?? tables.usual;
  for (const chip of tables.chips) {
    const label = element("label", "");
    label.append(element("input", "", { type: "checkbox", value: chip.name }), chip.marketing);
    at("chips").append(label);
  }
  at("release").append(element("option", "the newest", { value: "" }));
  for (const [i, row] of tables.releases.entries()) at("release").append(element("option", `${row.mac}, ${row.phone}, ${row.pad}`, { value: String(i) }));
  for (const name of tables.units) at("units").append(element("option", name, { value: name }));
};

/** The targets of the checked chips and the chosen system, as the command line spells them. */
const targets = () => {
  const row = tables.releases[at("release").value === "" ? -1 : Number(at("release").value)];
  const checked = [...at("chips").querySelectorAll("input:checked")].map((box) => box.value);
  if (checked.length === 0) return row ? [tables.usual.split("+")[0] + `+${row.mac}`] : [];
  return checked.map((name) => {
    const chip = tables.chips.find((other) => other.name === name);
    return row ? `${name}+${row[chip.systems[0]]}` : name;
  });
};

const numbers = (text) => text.split(/[\s,]+/).filter(Boolean).map((word) => {
  if (!/^[1-9]\d*$/.test(word)) throw new Error(`Input lengths: expected whole numbers such as 128,512, found ${word}.`);
  return Number(word);
});

const show = ({ json, page, report }) => {
  saved.forEach((url) => URL.revokeObjectURL(url));
  const url = (text, type) => URL.createObjectURL(new Blob([text], { type }));
  saved = [url(page, "text/html;charset=utf-8"), url(json, "application/json")];
  at("report").src = at("save-page").href = saved[0];
  at("save-json").href = saved[1];
  at("result-name").textContent = `Report of ${report.subject.name}`;
  at("result").hidden = false;
  const ended = (f) => /_(\d+)$/.exec(f.name);
  const timed = report.targets[0].functions.filter(ended).map((f) => [Number(ended(f)[1]), f.latency.ms]);
  const byLength = new Map(timed.sort(([a], [b]) => a - b));
  if (byLength.size > 1) at("times").value = [...byLength].map(([length, ms]) => `${length}=${Number(ms.toPrecision(6))}`).join(",");
};

const working = (is) => {
  at("go").disabled = is;
  at("stop").hidden = at("progress").hidden = !is;
};

const startAudit = () => {
  at("audit-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    showError("error", "");
    if (!chosen) return showError("error", "Expected a model, found none: drop one above or choose it there.");
    stopping = new AbortController();
    const begun = performance.now();
    working(true);
    try {
      const onProgress = ({ phase, bytes }) => {
        at("status").textContent = bytes > 0 ? `${phase}, ${size(bytes)} so far` : phase;
      };
      onProgress({ phase: "loading the auditor", bytes: 0 });
      const options = { targets: targets(), units: at("units").value, lengths: numbers(at("lengths").value), page: true };
      show(await audit(chosen, { ...options, signal: stopping.signal, onProgress }));
      at("status").textContent = `Done in ${((performance.now() - begun) / 1000).toFixed(1)} s: the report is below.`;
    } catch (error) {
      const isStopped = stopping.signal.aborted;
      at("status").textContent = isStopped ? "Stopped." : "";
      if (!isStopped) showError("error", error);
    }
    working(false);
  });
  at("stop").addEventListener("click", () => {
    stopping?.abort();
    at("go").focus();
  });
};

const times = (text) => text.split(/[\s,]+/).filter(Boolean).map((pair) => {
  const found = /^(\d+)=(\d+(?:\.\d+)?)$/.exec(pair);
  if (!found) throw new Error(`Times: expected a length and its milliseconds such as 128=14.0, found ${pair}.`);
  return [Number(found[1]), Number(found[2])];
});

const table = ({ plans, knee, unlimited }) => {
  const out = element("table", "");
  out.append(element("caption", "The bold row has the fewest functions within 5 % of the best."));
  const row = (kind, cells) => {
    const tr = element("tr", "");
    tr.append(...cells.map((cell) => element(kind, cell)));
    return tr;
  };
  out.append(row("th", ["functions", "ms per text", "padding", "slower than the best by", "lengths"]));
  const percent = (share) => `${(share * 100).toFixed(1)} %`;
  const cells = (plan, lengths) => [String(plan.buckets.length), plan.ms_per_text.toFixed(3), percent(plan.padded), percent(plan.loss), lengths];
  for (const plan of plans) {
    const tr = row("td", cells(plan, plan.buckets.join(",")));
    if (plan.buckets.length === knee) tr.className = "chosen";
    out.append(tr);
  }
  out.append(row("td", cells(unlimited, "as many as help")));
  return out;
};

const startPlan = () => {
  at("plan-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    showError("plan-error", "");
    at("plan").hidden = true;
    const number = (id) => at(id).valueAsNumber || 0;
    try {
      const plan = { histogram: at("histogram").value, times: times(at("times").value) };
      const found = await buckets({ ...plan, align: number("align"), count: number("count"), maxTokens: number("max-tokens") });
      at("plan").replaceChildren(table(found));
      at("plan").hidden = false;
    } catch (error) {
      showError("plan-error", error);
    }
  });
};

startDrop();
startAudit();
startPlan();
try {
  tables = await about();
  at("version").textContent = tables.version;
  startTargets();
} catch (error) {
  showError("error", error);
}
document.body.dataset.ready = "yes";
