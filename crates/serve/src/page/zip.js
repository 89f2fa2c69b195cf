// Files as a zip archive, without compression. Contents stay where the browser keeps them; only
// checksums are computed here. Format: PKWARE's APPNOTE 6.3, sections 4.3.7, 4.3.12 and 4.3.16.

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let bit = 0; bit < 8; bit += 1) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});

const checksum = async (file) => {
  let crc = 0xffffffff;
  const reader = file.stream().getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return ~crc >>> 0;
    for (const byte of value) crc = TABLE[(crc ^ byte) & 0xff] ^ (crc >>> 8);
  }
};

/** Numbers as bytes, the lowest first: [length in bytes, number]. */
const bytes = (...numbers) => {
  const out = [];
  for (const [n, value] of numbers) {
    for (let i = 0; i < n; i += 1) out.push(Math.floor(value / 2 ** (8 * i)) % 256);
  }
  return new Uint8Array(out);
};

/** 1 January 1980: times of files are nobody's business. */
const DATE = 0x21;
/** Names are UTF-8. */
const FLAGS = 0x800;

/** An archive of [path, file] pairs, shorter than 4 GiB, as a Blob. */
export const zip = async (files) => {
  const [parts, directory] = [[], []];
  let offset = 0;
  for (const [path, file] of files) {
    const name = new TextEncoder().encode(path);
    const common = [[2, 20], [2, FLAGS], [2, 0], [2, 0], [2, DATE], [4, await checksum(file)], [4, file.size],
      [4, file.size], [2, name.length], [2, 0]];
    parts.push(bytes([4, 0x04034b50], ...common), name, file);
    directory.push(bytes([4, 0x02014b50], [2, 20], ...common, [2, 0], [2, 0], [2, 0], [4, 0], [4, offset]), name);
    offset += 30 + name.length + file.size;
  }
  const length = directory.reduce((sum, part) => sum + part.length, 0);
  const counts = [[2, files.length], [2, files.length]];
  const end = bytes([4, 0x06054b50], [2, 0], [2, 0], ...counts, [4, length], [4, offset], [2, 0]);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
};
