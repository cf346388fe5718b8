// Draws the charts as wide as there is room, sorts tables, and shows the stages of a placement.

// Charts take the ink of the page, so they follow light, dark and paper without being drawn again.
const CONFIG = {
  background: "transparent", font: "system-ui, sans-serif", mark: { color: "#2B87BF" },
  view: { stroke: "currentColor", strokeOpacity: 0.25 }, rule: { color: "currentColor" },
  tick: { color: "currentColor" },
  axis: { labelColor: "currentColor", titleColor: "currentColor", labelFontSize: 12,
    titleFontSize: 12, titleFontWeight: "normal", gridColor: "currentColor", gridOpacity: 0.15,
    domainColor: "currentColor", domainOpacity: 0.4, tickColor: "currentColor", tickOpacity: 0.4 },
  legend: { labelColor: "currentColor", titleColor: "currentColor", labelFontSize: 12 },
  header: { labelColor: "currentColor", titleColor: "currentColor", labelFontSize: 13 },
};
const LEAST_WIDTH = 120;
const SIDE_BY_SIDE = 800;

function partsOf(chart) {
  return chart.spec ? [chart.spec] : chart.hconcat || chart.vconcat || [chart];
}

async function draw(original, box) {
  const chart = structuredClone(original);
  if (box.clientWidth < SIDE_BY_SIDE) {
    if (chart.hconcat) {
      chart.vconcat = chart.hconcat;
      delete chart.hconcat;
    }
    chart.config = { ...chart.config, legend: { orient: "bottom", columns: 2 } };
  }
  // A finger that moves a chart could not scroll the page, which zooms by itself.
  if (chart.params && window.matchMedia("(pointer: coarse)").matches) {
    chart.params = chart.params.filter(param => param.bind !== "scales");
  }
  const options = { renderer: "svg", config: CONFIG,
    actions: { export: true, source: false, compiled: false, editor: false } };
  let shown = await vegaEmbed(box, chart, options);
  const excess = box.scrollWidth - box.clientWidth;
  if (excess > 0) {
    for (const part of partsOf(chart)) part.width = Math.max(LEAST_WIDTH, part.width - excess);
    shown.finalize();
    shown = await vegaEmbed(box, chart, options);
  }
  // Vega describes the box around the picture with a role that few screen readers know.
  const picture = box.querySelector("svg.marks");
  for (const name of ["role", "aria-label", "aria-roledescription"]) {
    picture.parentNode.removeAttribute(name);
  }
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", original.description);
  return shown;
}

const boxes = CHARTS.map((_, number) => document.getElementById("chart" + number));
let drawing = Promise.resolve([]);

function drawAll() {
  drawing = drawing.then(before => {
    before.forEach(shown => shown.finalize());
    return Promise.all(CHARTS.map((chart, number) => draw(chart, boxes[number])));
  });
}

let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth !== width) {
    width = window.innerWidth;
    drawAll();
  }
});
drawAll();

document.querySelectorAll("th button").forEach(button => button.addEventListener("click", () => {
  const heading = button.closest("th"), body = heading.closest("table").tBodies[0];
  const column = heading.cellIndex, rising = heading.getAttribute("aria-sort") !== "ascending";
  heading.parentNode.querySelectorAll("th").forEach(th => th.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", rising ? "ascending" : "descending");
  const value = row => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
  };
  const order = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (typeof x !== typeof y) return typeof x === "number" ? -1 : 1;
    return (x < y ? -1 : x > y ? 1 : 0) * (rising ? 1 : -1);
  };
  Array.from(body.rows).sort(order).forEach(row => body.append(row));
}));

// Of all details one is shown, next to its row and free of the box in which the table scrolls.
let open = null;

function place() {
  if (!open) return;
  const row = open.row.getBoundingClientRect(), tip = open.tip;
  const name = open.button.getBoundingClientRect();
  const furthest = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = Math.max(8, Math.min(name.left, furthest)) + "px";
  const below = row.bottom + tip.offsetHeight <= window.innerHeight;
  tip.style.top = (below ? row.bottom : row.top - tip.offsetHeight) + "px";
}

function close() {
  if (open) open.tip.hidden = true;
  open = null;
}

document.querySelectorAll("button.look").forEach(button => {
  const row = button.closest("tr");
  const tip = document.getElementById(button.getAttribute("aria-describedby"));
  const show = () => {
    close();
    open = { row, tip, button };
    tip.hidden = false;
    place();
  };
  const leave = event => {
    const next = event.relatedTarget;
    const stays = next instanceof Node && (tip.contains(next) || row.contains(next));
    if (open && open.tip === tip && !stays) close();
  };
  row.addEventListener("pointerenter", show);
  row.addEventListener("pointerleave", leave);
  tip.addEventListener("pointerleave", leave);
  button.addEventListener("focus", show);
  button.addEventListener("blur", leave);
  button.addEventListener("click", show);
});
document.addEventListener("keydown", event => { if (event.key === "Escape") close(); });
document.addEventListener("scroll", place, { capture: true, passive: true });
