// The files of a zip archive. What is stored in it stays where it is, as a slice of the archive.
// Format: PKWARE's APPNOTE 6.3, sections 4.3.7, 4.3.12, 4.3.14, 4.3.16 and 4.5.3.

/** Most files of an archive; packages have fewer than twenty. */
const MOST_FILES = 4096;
const [STORED, DEFLATED] = [0, 8];
/** A length or offset that stands in the extra field, in 64 bits. */
const ELSEWHERE = 0xffffffff;

const fault = (what) => new Error(`The zip archive cannot be read: ${what}. Pack the model again.`);
const view = async (blob, start, end) => {
  const bytes = await blob.slice(start, end).arrayBuffer();
  if (bytes.byteLength !== end - start) throw fault("it ends too early");
  return new DataView(bytes);
};
const text = (bytes, start, length) =>
  new TextDecoder().decode(new Uint8Array(bytes.buffer, bytes.byteOffset + start, length));

/** Where the directory begins, and how many entries and bytes it has. */
const directory = async (blob) => {
  const from = Math.max(0, blob.size - 22 - 0xffff);
  const tail = await view(blob, from, blob.size);
  let at = tail.byteLength - 22;
  while (at >= 0 && tail.getUint32(at, true) !== 0x06054b50) at -= 1;
  if (at < 0) throw fault("it has no directory at its end");
  const short = { n: tail.getUint16(at + 10, true), bytes: tail.getUint32(at + 12, true), start: tail.getUint32(at + 16, true) };
  if (short.n !== 0xffff && short.bytes !== ELSEWHERE && short.start !== ELSEWHERE) return short;
  if (at < 20 || tail.getUint32(at - 20, true) !== 0x07064b50) return short;
  const long = Number(tail.getBigUint64(at - 12, true));
  const end = await view(blob, long, long + 56);
  const number = (place) => Number(end.getBigUint64(place, true));
  return { n: number(32), bytes: number(40), start: number(48) };
};

/** The lengths and the offset of an entry, those of 64 bits from its extra field. */
const places = (entry, at, nameLength, extraLength) => {
  const numbers = [24, 20, 42].map((place) => entry.getUint32(at + place, true));
  let field = at + 46 + nameLength;
  const end = field + extraLength;
  while (field + 4 <= end) {
    const [id, length] = [entry.getUint16(field, true), entry.getUint16(field + 2, true)];
    let value = field + 4;
    if (id === 1) {
      for (const [i, number] of numbers.entries()) {
        if (number !== ELSEWHERE || value + 8 > field + 4 + length) continue;
        numbers[i] = Number(entry.getBigUint64(value, true));
        value += 8;
      }
    }
    field += 4 + length;
  }
  const [size, packed, offset] = numbers;
  return { size, packed, offset };
};

const entries = async (blob) => {
  const { n, bytes, start } = await directory(blob);
  if (n > MOST_FILES) throw fault(`expected at most ${MOST_FILES} files, found ${n}`);
  const listed = await view(blob, start, start + bytes);
  const found = [];
  let at = 0;
  for (let i = 0; i < n; i += 1) {
    if (at + 46 > bytes || listed.getUint32(at, true) !== 0x02014b50) throw fault("its directory is damaged");
    const [nameLength, extraLength, commentLength] = [28, 30, 32].map((place) => listed.getUint16(at + place, true));
    const path = text(listed, at + 46, nameLength);
    const [flags, method] = [listed.getUint16(at + 8, true), listed.getUint16(at + 10, true)];
    if (flags & 1) throw fault(`${path} is encrypted`);
    found.push({ path, method, ...places(listed, at, nameLength, extraLength) });
    at += 46 + nameLength + extraLength + commentLength;
  }
  return found;
};

/** Whether a path stays inside of the folder that it is in. */
const isInside = (path) =>
  !/[\\\0]/.test(path) && path.split("/").every((part) => part !== "" && part !== "." && part !== "..");

/**
 * The files of an archive as [path, Blob] pairs. `inflate` gives the bytes of a deflated Blob as one, and
 * `hear` is given the bytes that are unpacked so far.
 */
export const unzip = async (blob, inflate, hear = () => {}) => {
  const files = [];
  let unpacked = 0;
  for (const { path, method, size, packed, offset } of await entries(blob)) {
    if (path.endsWith("/") || path.startsWith("__MACOSX/")) continue;
    if (!isInside(path)) throw fault(`expected files inside of a folder, found ${JSON.stringify(path)}`);
    const head = await view(blob, offset, offset + 30);
    if (head.getUint32(0, true) !== 0x04034b50) throw fault(`${path} is not where the directory says`);
    const start = offset + 30 + head.getUint16(26, true) + head.getUint16(28, true);
    const stored = blob.slice(start, start + packed);
    if (method !== STORED && method !== DEFLATED) throw fault(`${path} is packed by method ${method}, expected deflate`);
    const file = method === STORED ? stored : await inflate(stored, size, path);
    if (file.size !== size) throw fault(`${path} has ${file.size} bytes, expected ${size}`);
    files.push([path, file]);
    unpacked += size;
    hear(unpacked);
  }
  return files;
};
