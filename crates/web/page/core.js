// Calls the module. An instance answers one question and is dropped with its memory.

/** What the module writes, by number: see `Text` in abi.rs. */
const [JSON_TEXT, PAGE, ERROR, PHASE, PANIC] = [0, 1, 2, 3, 4];
/** The number of the question, beside those of files. */
const QUESTION = 0xffffffff;

/**
 * Asks the module. `sources` are the files of the question by number: each has `read(offset, out)`, which
 * fills `out`. `hear` is given the phase and the bytes read so far.
 */
export const ask = async (module, question, sources = [], hear = () => {}) => {
  const text = new TextEncoder().encode(JSON.stringify(question));
  const written = [];
  let memory = null;
  let bytesRead = 0;
  let phase = "";
  let heardAt = 0;
  const read = (file, offset, to, length) => {
    // Numbers of WebAssembly are signed here.
    const [at, start, n] = [offset >>> 0, to >>> 0, length >>> 0];
    const out = new Uint8Array(memory.buffer, start, n);
    if (file >>> 0 === QUESTION) {
      out.set(text.subarray(at, at + n));
      return;
    }
    sources[file].read(at, out);
    bytesRead += n;
    if (bytesRead - heardAt > 2 ** 22) {
      heardAt = bytesRead;
      hear(phase, bytesRead);
    }
  };
  const write = (kind, from, length) => {
    const bytes = new Uint8Array(memory.buffer, from >>> 0, length >>> 0);
    // A copy, because memory that is shared or grows cannot be decoded in place everywhere.
    written[kind] = new TextDecoder().decode(bytes.slice());
    if (kind === PHASE) hear((phase = written[kind]), bytesRead);
  };
  const instance = await WebAssembly.instantiate(module, { thane: { read, write } });
  memory = instance.exports.memory;
  try {
    instance.exports.thane_answer(text.length);
  } catch (error) {
    if (!(error instanceof WebAssembly.RuntimeError)) throw error;
    const what = written[PANIC] ?? error.message;
    throw new Error(`The auditor failed, which is a fault of Thane, or it ran out of memory: ${what}`, { cause: error });
  }
  if (written[ERROR] !== undefined) throw new Error(written[ERROR]);
  return { json: written[JSON_TEXT], page: written[PAGE] };
};

/** Reads through a window, because the auditor reads thousands of small pieces in rising order. */
export const windowed = (size, fetch) => {
  const WINDOW = 2 ** 20;
  let [start, window] = [0, new Uint8Array(0)];
  return {
    size,
    read(offset, out) {
      if (out.length >= WINDOW) {
        out.set(fetch(offset, out.length));
        return;
      }
      if (offset < start || offset + out.length > start + window.length) {
        start = offset;
        window = fetch(start, Math.min(WINDOW, size - start));
      }
      out.set(window.subarray(offset - start, offset - start + out.length));
    },
  };
};

/** A source of bytes that are in memory. */
export const ofBytes = (bytes) => ({
  size: bytes.length,
  read(offset, out) {
    out.set(bytes.subarray(offset, offset + out.length));
  },
});
