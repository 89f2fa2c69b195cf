// The auditor of Thane in a browser and in Node: see index.d.ts, and README.md for an example.

import { ask, ofBytes, windowed } from "./core.js";
import { unzip } from "./unzip.js";

const isNode = typeof process !== "undefined" && Boolean(process.versions?.node);
const MODULE = new URL("./thane_audit.wasm", import.meta.url);
let loading = null;

const load = async () => {
  if (isNode) {
    const { readFile } = await import("node:fs/promises");
    return WebAssembly.compile(await readFile(MODULE));
  }
  const response = await fetch(MODULE);
  if (!response.ok) throw new Error(`${MODULE}: the server answers ${response.status}: put the file beside index.js`);
  // Servers that do not know the type of such files are no obstacle.
  return WebAssembly.compile(await response.arrayBuffer());
};

/** Fetches and compiles the module, once. */
const compiled = () => {
  loading ??= load().catch((error) => {
    loading = null;
    throw error;
  });
  return loading;
};

const isArchive = (name) => /\.zip$/i.test(name);
const named = (path) => path.replace(/[\\/]+$/, "").split(/[\\/]/).at(-1) || "model";

const question = (name, { targets = [], units, function: only, lengths = [], page = false }) => ({
  ask: "audit", name, targets: typeof targets === "string" ? targets.split(",") : targets, units, function: only, lengths, page,
});

/** The files below the one folder that they are in, and its name. */
const below = (files) => {
  const first = files[0]?.[0].split("/")[0] ?? "";
  const isCommon = files.every(([path]) => path.startsWith(`${first}/`));
  if (!isCommon || first === "") return ["model", files];
  return [first, files.map(([path, file]) => [path.slice(first.length + 1), file])];
};

/** A worker's answer. It ends with the answer, or when `signal` says so. */
const inWorker = (message, { signal, onProgress = () => {} } = {}) =>
  new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    const stop = () => end(reject, signal.reason);
    const end = (done, value) => {
      signal?.removeEventListener("abort", stop);
      worker.terminate();
      done(value);
    };
    signal?.addEventListener("abort", stop);
    worker.addEventListener("message", ({ data }) => {
      if (data.answer) return end(resolve, data.answer);
      if (data.error !== undefined) return end(reject, new Error(data.error));
      return onProgress(data);
    });
    worker.addEventListener("error", (event) => end(reject, new Error(event.message || "worker.js could not be loaded: put it beside index.js")));
    worker.postMessage(message);
  });

const inBrowser = async (input, options) => {
  const module = await compiled();
  if (input instanceof Blob) {
    if (!/\.mil$/i.test(input.name ?? "")) {
      const name = named(input.name ?? "model").replace(/\.zip$/i, "");
      return inWorker({ module, question: question(name, options), archive: input }, options);
    }
    input = [input];
  }
  const files = [...input].map((file) => (Array.isArray(file) ? file : [file.webkitRelativePath || file.name, file]));
  if (files.length === 1 && isArchive(files[0][0])) return inBrowser(files[0][1], options);
  const [name, inside] = below(files.map(([path, file]) => [path, file instanceof Blob ? file : new Blob([file])]));
  return inWorker({ module, question: question(options.name ?? name, options), files: inside }, options);
};

/** The files of a model on the disk, as [path inside, source] pairs; `close` ends reading. */
const onDisk = async (path) => {
  const fs = await import("node:fs");
  const open = [];
  const source = (file) => {
    let at = null;
    return windowed(fs.statSync(file).size, (offset, length) => {
      if (at === null) open.push((at = fs.openSync(file, "r")));
      const out = new Uint8Array(length);
      let n = 0;
      while (n < length) {
        const more = fs.readSync(at, out, n, length - n, offset + n);
        if (more === 0) throw new Error(`${file}: the file became shorter while it was read`);
        n += more;
      }
      return out;
    });
  };
  const walk = (folder, inside) =>
    fs.readdirSync(`${folder}/${inside}`).flatMap((name) => {
      const inner = `${inside}${name}`;
      const isFolder = fs.statSync(`${folder}/${inner}`).isDirectory();
      return isFolder ? walk(folder, `${inner}/`) : [[inner, source(`${folder}/${inner}`)]];
    });
  const close = () => open.forEach((at) => fs.closeSync(at));
  if (!fs.existsSync(path)) throw new Error(`${path}: no such file or folder: the path of a package, a compiled model or a .mil file`);
  if (fs.statSync(path).isDirectory()) return { files: walk(path, ""), close };
  // The weights of a text are in a folder beside it.
  const folder = path.replace(/[^\\/]*$/, "") || ".";
  const weights = fs.existsSync(`${folder}/weights`) ? walk(folder, "weights/") : [];
  return { files: [[named(path), source(path)], ...weights], close };
};

const inflateInNode = async (blob, size, path) => {
  const { inflateRawSync } = await import("node:zlib");
  try {
    return new Blob([inflateRawSync(await blob.arrayBuffer(), { maxOutputLength: Math.max(size, 1) })]);
  } catch (error) {
    throw new Error(`${path}: the archive is damaged: ${error.message}`, { cause: error });
  }
};

const inMemory = async (files) =>
  Promise.all(files.map(async ([path, file]) =>
    [path, ofBytes(file instanceof Blob ? new Uint8Array(await file.arrayBuffer()) : file)]));

const inNode = async (input, options) => {
  const module = await compiled();
  let [name, files, close] = ["", [], () => {}];
  if (typeof input === "string" && !isArchive(input)) {
    ({ files, close } = await onDisk(input));
    name = named(input);
  } else if (typeof input === "string" || input instanceof Blob) {
    const { readFile } = await import("node:fs/promises");
    const archive = typeof input === "string" ? new Blob([await readFile(input)]) : input;
    name = named(typeof input === "string" ? input : input.name ?? "model").replace(/\.zip$/i, "");
    files = await inMemory(await unzip(archive, inflateInNode));
  } else {
    [name, files] = below(await inMemory([...input]));
  }
  try {
    const whole = { ...question(options.name ?? name, options), files: files.map(([path, source]) => ({ path, bytes: source.size })) };
    return await ask(module, whole, files.map(([, source]) => source), (phase, bytes) => options.onProgress?.({ phase, bytes }));
  } finally {
    close();
  }
};

export const audit = async (input, options = {}) => {
  const { json, page } = await (isNode ? inNode(input, options) : inBrowser(input, options));
  return { json, page, report: JSON.parse(json) };
};

export const about = async () => JSON.parse((await ask(await compiled(), { ask: "about" })).json);

export const buckets = async ({ histogram, times, align, count, maxTokens }) => {
  const text = typeof histogram === "string" ? histogram : JSON.stringify(histogram);
  const plan = { ask: "buckets", histogram: text, times, align, count, max_tokens: maxTokens };
  return JSON.parse((await ask(await compiled(), plan)).json);
};
