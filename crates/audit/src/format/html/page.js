"use strict";
(() => {
  const KEYS = ["name", "kind", "place", "backend", "ms", "flops", "bytes", "why"];
  const NUMBERS = new Set(["i", "ms", "flops", "bytes"]);
  const STEP = 200;
  const functions = JSON.parse(document.getElementById("data").textContent).functions;
  const at = (id) => document.getElementById(id);
  const [select, backend, found, filter, status, table, more] =
    ["function", "backend", "found", "filter", "status", "table", "more"].map(at);
  const body = table.tBodies[0];
  const state = { key: "i", down: false, shown: STEP, rows: [] };

  // `layers_2` stands before `layers_10`.
  const { compare } = new Intl.Collator("en", { numeric: true });

  const row = (list, i) => {
    const op = { i };
    KEYS.forEach((key, at) => { op[key] = list[at]; });
    op.text = [op.name, op.kind, op.place, op.why.join(" ")].join(" ").toLowerCase();
    return op;
  };

  const number = (value) => {
    if (value === null) return "";
    if (value === 0) return "0";
    return Math.abs(value) >= 1e-6 && Math.abs(value) < 1e9
      ? value.toLocaleString("en", { maximumSignificantDigits: Math.abs(value) < 0.001 ? 2 : 3 }) : value.toExponential(2);
  };

  const cell = (label, text, numeric) => {
    const td = document.createElement("td");
    // Long names break between their words.
    for (const part of numeric ? [text] : text.split(/(?<=[_./])/)) {
      if (td.firstChild) td.append(document.createElement("wbr"));
      td.append(part);
    }
    td.dataset.label = label;
    if (numeric) td.className = "n";
    return td;
  };

  const wanted = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const runs = { "": () => true, ane: (op) => op.backend === "Neural Engine", off: (op) => op.backend !== "Neural Engine" }[backend.value];
    return state.rows.filter((op) => runs(op) && (!found.checked || op.why.length > 0)
      && words.every((word) => op.text.includes(word)));
  };

  const draw = () => {
    const ops = wanted();
    const sign = state.down ? -1 : 1;
    const value = (op) => (state.key === "why" ? op.why.join(" ") : op[state.key]);
    ops.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      const order = NUMBERS.has(state.key) ? (x ?? 0) - (y ?? 0) : compare(x, y);
      return sign * order || a.i - b.i;
    });
    const part = document.createDocumentFragment();
    for (const op of ops.slice(0, state.shown)) {
      const tr = document.createElement("tr");
      tr.append(cell("#", op.i + 1, true), cell("result", op.name), cell("op", op.kind), cell("module", op.place),
        cell("runs on", op.backend), cell("ms", number(op.ms), true), cell("MFLOP", number(op.flops), true),
        cell("kB", number(op.bytes), true), cell("findings", op.why.join("; ")));
      part.append(tr);
    }
    body.replaceChildren(part);
    more.hidden = ops.length <= state.shown;
    const count = `${ops.length} ${ops.length === 1 ? "op" : "ops"}`;
    status.textContent = `${Math.min(state.shown, ops.length)} of ${count} shown, ${state.rows.length} in the function`;
  };

  const restart = () => { state.shown = STEP; draw(); };

  const choose = () => {
    state.rows = (functions[select.selectedIndex]?.rows ?? []).map(row);
    restart();
  };

  for (const f of functions) {
    const option = document.createElement("option");
    option.textContent = f.name;
    select.append(option);
  }
  for (const button of table.tHead.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      const { key } = button.dataset;
      state.down = state.key === key ? !state.down : NUMBERS.has(key) && key !== "i";
      state.key = key;
      for (const th of table.tHead.rows[0].cells) th.removeAttribute("aria-sort");
      button.closest("th").setAttribute("aria-sort", state.down ? "descending" : "ascending");
      restart();
    });
  }
  select.addEventListener("change", choose);
  [backend, found].forEach((input) => input.addEventListener("change", restart));
  filter.addEventListener("input", restart);
  at("controls").addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", () => {
    const first = state.shown;
    state.shown += STEP;
    draw();
    // What was added is where a reader with a keyboard goes on.
    const next = body.rows[first];
    if (next) { next.tabIndex = -1; next.focus(); }
  });
  choose();

  // In a sandboxed frame, as `thane serve` shows reports, browsers do not follow links within it.
  if (location.protocol === "blob:") {
    document.addEventListener("click", (event) => {
      const link = event.target.closest("a[href^='#']");
      const place = link && document.querySelector(link.getAttribute("href"));
      if (!place) return;
      event.preventDefault();
      place.scrollIntoView();
      place.focus();
    });
  }
})();
