// Line charts of the last minutes, as SVG.

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [320, 132];
/** The frame of the lines. */
const [LEFT, RIGHT, TOP, BOTTOM] = [44, 316, 8, 112];

const svg = (name, attributes, text) => {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};

/** A round number that is not below `value`: 1, 2 or 5 and zeros. */
const roundUp = (value) => {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= value);
};

const short = (n) => (n >= 1e4 ? `${Math.round(n / 1e3)}k` : String(Math.round(n * 10) / 10));

/** A chart of series over `seconds`: a figure, and `draw`, which takes [[time in s, [value..]]..]. */
export const chart = (title, names, seconds) => {
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  caption.textContent = title;
  const legend = document.createElement("ul");
  legend.className = "legend";
  const items = names.map((_, i) => {
    const item = document.createElement("li");
    item.className = `s${i}`;
    return item;
  });
  legend.append(...items);
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  figure.append(caption, picture, legend);

  const draw = (samples) => {
    const now = samples.at(-1)?.[0] ?? 0;
    const most = roundUp(Math.max(0, ...samples.flatMap(([, values]) => values)));
    const x = (time) => RIGHT - ((now - time) / seconds) * (RIGHT - LEFT);
    const y = (value) => BOTTOM - (value / most) * (BOTTOM - TOP);
    const grid = [0, most / 2, most].flatMap((value) => [
      svg("line", { x1: LEFT, x2: RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { x: LEFT - 6, y: y(value) + 4, class: "end" }, short(value)),
    ]);
    const times = [
      svg("text", { x: LEFT, y: HEIGHT - 4 }, `${seconds} s ago`),
      svg("text", { x: RIGHT, y: HEIGHT - 4, class: "end" }, "now"),
    ];
    const lines = names.map((_, i) => svg("polyline", {
      class: `s${i}`,
      points: samples.map(([time, values]) => `${x(time).toFixed(1)},${y(values[i]).toFixed(1)}`).join(" "),
    }));
    picture.replaceChildren(...grid, ...times, ...lines);
    const last = samples.at(-1)?.[1] ?? names.map(() => 0);
    const said = names.map((name, i) => `${name} ${short(last[i])}`);
    items.forEach((item, i) => { item.textContent = said[i]; });
    picture.setAttribute("aria-label", `${title}, now: ${said.join(", ")}`);
  };
  draw([]);
  return { figure, draw };
};
