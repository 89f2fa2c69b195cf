// Audits in a worker of the page, where files are read without copying them whole. Whoever started it ends
// it to stop. The page hands over the module, so nothing is fetched here.

import { ask, windowed } from "./core.js";
import { unzip } from "./unzip.js";

const hear = (phase, bytes) => postMessage({ phase, bytes });

/** Unpacks a file of an archive; the browser may keep it on its disk. */
const inflate = async (blob, size, path) => {
  let n = 0;
  const checked = new TransformStream({
    transform(piece, to) {
      n += piece.length;
      if (n > size) throw new Error(`${path}: the archive is damaged: expected ${size} bytes, found more`);
      to.enqueue(piece);
    },
  });
  return new Response(blob.stream().pipeThrough(new DecompressionStream("deflate-raw")).pipeThrough(checked)).blob();
};

const source = (blob, path) =>
  windowed(blob.size, (offset, length) => {
    try {
      return new Uint8Array(new FileReaderSync().readAsArrayBuffer(blob.slice(offset, offset + length)));
    } catch (error) {
      throw new Error(`${path}: the browser could not read the file: choose it again (${error.message})`, { cause: error });
    }
  });

const answer = async ({ module, question, files, archive }) => {
  if (archive) {
    hear("unpacking", 0);
    files = await unzip(archive, inflate, (bytes) => hear("unpacking", bytes));
  }
  const whole = files ? { ...question, files: files.map(([path, blob]) => ({ path, bytes: blob.size })) } : question;
  return ask(module, whole, (files ?? []).map(([path, blob]) => source(blob, path)), hear);
};

addEventListener("message", async ({ data }) => {
  try {
    postMessage({ answer: await answer(data) });
  } catch (error) {
    postMessage({ error: error.message });
  }
});
