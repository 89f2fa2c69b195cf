// Markdown as elements: paragraphs, headings, lists, quotes, code, bold, italics and links. What a
// model writes is only ever the text of a node, never HTML, and links lead to http(s) alone. The
// work is linear in the text, however the text was made.

/** Most lists, quotes and emphases within each other; what is deeper is text. */
const MAX_DEPTH = 8;

const FENCE = /^ {0,3}(`{3,}|~{3,})[^`]*$/;
const HEADING = /^ {0,3}#{1,6}[ \t]+(.*?)[ \t]*#*$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const LINK = /\[([^[\]\n]{1,500})\]\((https?:\/\/[^\s()<>]{1,2000})\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`()[\]]{1,2000}/y;
const IS_WORD = /[\p{L}\p{N}_]/u;
const IS_MARK = /[!-/:-@[-`{-~]/;

const element = (name, ...children) => {
  const made = document.createElement(name);
  made.append(...children);
  return made;
};

const link = (address, text) => {
  const made = element("a", text);
  made.href = address;
  made.target = "_blank";
  made.rel = "noopener noreferrer";
  return made;
};

/** A link at a place of a text, where one is. */
const linkAt = (text, i) => {
  const [pattern, isNamed] = text[i] === "[" ? [LINK, true] : [ADDRESS, false];
  pattern.lastIndex = i;
  const found = pattern.exec(text);
  if (!found || (!isNamed && i > 0 && IS_WORD.test(text[i - 1]))) return null;
  // A sentence ends behind an address, not in it.
  const whole = isNamed ? found[0] : found[0].replace(/[.,;:!?*_]{1,8}$/, "");
  const [address, said] = isNamed ? [found[2], found[1]] : [whole, whole];
  return URL.canParse(address) ? { node: link(address, said), end: i + whole.length } : null;
};

/** The length of the run of a character. */
const runAt = (text, i) => {
  let end = i;
  while (text[end] === text[i]) end += 1;
  return end - i;
};

/** Code between as many backticks. `absent` has the lengths that do not come again. */
const codeAt = (text, i, absent) => {
  const n = runAt(text, i);
  const mark = "`".repeat(n);
  for (let at = absent.has(mark) ? -1 : text.indexOf(mark, i + n); at >= 0;) {
    const found = runAt(text, at);
    if (found === n) {
      const code = text.slice(i + n, at).replaceAll("\n", " ");
      const isPadded = code.startsWith(" ") && code.endsWith(" ") && code.trim() !== "";
      return { node: element("code", isPadded ? code.slice(1, -1) : code), end: at + n };
    }
    at = text.indexOf(mark, at + found);
  }
  absent.add(mark);
  return { node: mark, end: i + n };
};

/** Where the text that begins behind a mark of emphasis ends; -1 if the mark does not come again. */
const endOfEmphasis = (text, mark, from) => {
  for (let at = text.indexOf(mark, from); at >= 0;) {
    const n = runAt(text, at);
    const isWithin = mark[0] === "_" && IS_WORD.test(text[at + n] ?? "");
    if (n >= mark.length && (mark.length > 1 || n !== 2) && !isWithin && !/\s/.test(text[at - 1])) {
      return at + n - mark.length;
    }
    at = text.indexOf(mark, at + n);
  }
  return -1;
};

const emphasisAt = (text, i, absent, depth) => {
  const n = runAt(text, i);
  const plain = { node: text.slice(i, i + n), end: i + n };
  const mark = text[i].repeat(n);
  const isWithin = text[i] === "_" && i > 0 && IS_WORD.test(text[i - 1]);
  if (n > 3 || depth >= MAX_DEPTH || isWithin || absent.has(mark) || /^\s?$/.test(text[i + n] ?? "")) return plain;
  const end = endOfEmphasis(text, mark, i + n + 1);
  if (end < 0) {
    absent.add(mark);
    return plain;
  }
  const inner = inline(text.slice(i + n, end), depth + 1);
  const made = n === 2 ? element("strong", ...inner) : element("em", ...inner);
  return { node: n === 3 ? element("em", element("strong", ...inner)) : made, end: end + n };
};

/** What begins at a place of a text; null for a character. */
const partAt = (text, i, absent, depth) => {
  switch (text[i]) {
    case "\\": return IS_MARK.test(text[i + 1] ?? "") ? { node: text[i + 1], end: i + 2 } : null;
    case "`": return codeAt(text, i, absent);
    case "*": case "_": return emphasisAt(text, i, absent, depth);
    case "[": case "h": return linkAt(text, i);
    default: return null;
  }
};

/** The nodes of a text within a block. */
const inline = (text, depth = 0) => {
  const nodes = [];
  const absent = new Set();
  let plain = "";
  for (let i = 0; i < text.length;) {
    const part = partAt(text, i, absent, depth);
    if (part === null || typeof part.node === "string") {
      plain += part?.node ?? text[i];
      i = part?.end ?? i + 1;
      continue;
    }
    nodes.push(plain, part.node);
    plain = "";
    i = part.end;
  }
  return [...nodes, plain].filter((node) => node !== "");
};

/** The first line from a place that is an end, or the end of all. */
const endOf = (lines, from, isEnd) => {
  let at = from;
  while (at < lines.length && !isEnd(lines[at])) at += 1;
  return at;
};

const isBlank = (line) => line.trim() === "";

/** Whether a line ends a paragraph. */
const begins = (line) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line));

// Each kind of block takes the lines from a place, and says where the next block begins.

const fenced = (lines, from) => {
  const [, mark] = FENCE.exec(lines[from]);
  const isEnd = (line) => {
    const text = line.trim();
    return text.length >= mark.length && text === mark[0].repeat(text.length);
  };
  // A block without an end is still being written.
  const end = endOf(lines, from + 1, isEnd);
  const pre = element("pre", element("code", lines.slice(from + 1, end).join("\n")));
  pre.tabIndex = 0;
  return { node: pre, next: end + 1 };
};

const quote = (lines, from, depth) => {
  const end = endOf(lines, from, (line) => !QUOTE.test(line));
  const inner = lines.slice(from, end).map((line) => line.replace(QUOTE, ""));
  return { node: element("blockquote", ...blocks(inner, depth + 1)), next: end };
};

/** The lines of an item of a list, without its mark and indent. */
const itemAt = (lines, from) => {
  const [head, before] = ITEM.exec(lines[from]);
  const indent = " ".repeat(before.length + 2);
  const inner = [lines[from].slice(head.length)];
  const isOutside = (line) => {
    if (isBlank(line) || line.startsWith(indent)) return false;
    return isBlank(inner.at(-1)) || begins(line);
  };
  for (let at = from + 1; at < lines.length && !isOutside(lines[at]); at += 1) {
    const spaces = lines[at].length - lines[at].trimStart().length;
    inner.push(lines[at].slice(Math.min(head.length, spaces)));
  }
  return inner;
};

const list = (lines, from, depth) => {
  const kindOf = (line) => ITEM.exec(line)?.[2].at(-1);
  const kind = kindOf(lines[from]);
  const isOrdered = kind === "." || kind === ")";
  const made = element(isOrdered ? "ol" : "ul");
  if (isOrdered) made.start = Number.parseInt(lines[from], 10);
  let next = from;
  while (next < lines.length && kindOf(lines[next]) === kind && !RULE.test(lines[next])) {
    const inner = itemAt(lines, next);
    made.append(element("li", ...blocks(inner, depth + 1)));
    next += inner.length;
  }
  return { node: made, next };
};

const paragraph = (lines, from) => {
  const next = endOf(lines, from + 1, (line) => isBlank(line) || begins(line));
  const text = lines.slice(from, next).map((line) => line.trimStart()).join("\n");
  return { node: element("p", ...inline(text.trimEnd())), next };
};

const blockAt = (lines, from, depth) => {
  const line = lines[from];
  if (FENCE.test(line)) return fenced(lines, from);
  if (HEADING.test(line)) return { node: element("h4", ...inline(HEADING.exec(line)[1])), next: from + 1 };
  if (RULE.test(line)) return { node: element("hr"), next: from + 1 };
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quote(lines, from, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return list(lines, from, depth);
  return paragraph(lines, from);
};

const blocks = (lines, depth) => {
  const nodes = [];
  for (let at = 0; at < lines.length;) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const { node, next } = blockAt(lines, at, depth);
    nodes.push(node);
    at = next;
  }
  return nodes;
};

/** The elements of a text. */
export const markdown = (text) => blocks(text.replaceAll("\r\n", "\n").split("\n"), 0);

/** Shows a text in an element. What was there and is the same stays, with what is selected in it. */
export const showMarkdown = (into, text) => {
  const nodes = markdown(text);
  const old = [...into.childNodes];
  const at = nodes.findIndex((node, i) => !old[i]?.isEqualNode(node));
  const n = at < 0 ? nodes.length : at;
  old.slice(n).forEach((node) => node.remove());
  into.append(...nodes.slice(n));
};
