// The curve: certified recall against patch area, computed in the background; a click chooses an area.

const MARKERS = { far: "circle", close: "square", over: "triangle", anywhere: "diamond" };
const chartWork = new Work();
const chart = { key: "", points: [], width: 720, height: 330, left: 34, right: 96, top: 12, bottom: 40 };

function updateChart() {
  const key = `${attack.aspect} ${attack.threshold}`;
  if (chart.key === key) {
    drawChart();
    if (!chartWork.current) updateJoint();
    return;
  }
  chart.key = key;
  chart.points = areas.map(() => null);
  byId("chart-state").textContent = "(computing …)";
  chartWork.run(computeCurve({ ...attack }), () => {
    byId("chart-state").textContent = "";
    drawChart();
    fillChartTable();
    updateJoint();
  });
}

function* computeCurve({ aspect, threshold }) {
  for (const [at, area] of areas.entries()) {
    const counts = Object.fromEntries(locations.map((location) => [location, 0]));
    for (const n of counted) {
      const size = certificates.sizeFor(n, { area, aspect });
      for (const location of locations) counts[location] += certificates.certified(n, location, size, threshold);
      yield;
    }
    chart.points[at] = counts;
    drawChart();
  }
}

function marker(location, x, y, r = 4) {
  const shape = MARKERS[location],
    style = `dot series-${location}`;
  if (shape === "circle") return draw("circle", { class: style, cx: x, cy: y, r });
  const paths = {
    square: `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
    triangle: `M${x} ${y - r - 1}l${r + 1} ${2 * r}h${-2 * r - 2}z`,
    diamond: `M${x} ${y - r - 1}l${r + 1} ${r + 1}l${-r - 1} ${r + 1}l${-r - 1} ${-r - 1}z`,
  };
  return draw("path", { class: style, d: paths[shape] });
}

function chartX(area) {
  const low = Math.log(areas[0]),
    high = Math.log(areas[areas.length - 1]);
  return chart.left + ((Math.log(area) - low) / (high - low)) * (chart.width - chart.left - chart.right);
}
const chartY = (recall) => chart.height - chart.bottom - (recall / 100) * (chart.height - chart.top - chart.bottom);

function drawChart() {
  chart.width = Math.max(byId("chart").clientWidth, 300); // drawn at its own size, so that text stays readable
  chart.height = Math.max(Math.round(chart.width * 0.42), 240);
  const { width, height, left, right, bottom } = chart;
  const parts = [];
  for (let recall = 0; recall <= 100; recall += 20) {
    parts.push(
      draw("path", { class: "axis", d: `M${left} ${chartY(recall)}H${width - right}` }),
      draw("text", { x: left - 6, y: chartY(recall) + 4, "text-anchor": "end" }, String(recall)),
    );
  }
  for (const area of [0.001, 0.01, 0.1, 1].filter((one) => one >= areas[0] && one <= areas[areas.length - 1])) {
    parts.push(draw("text", { x: chartX(area), y: height - bottom + 18, "text-anchor": "middle" }, areaWords(area)));
  }
  parts.push(
    draw(
      "text",
      { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" },
      "patch area, share of the image",
    ),
    draw("path", { class: "now", d: `M${chartX(attack.area)} ${chart.top}V${height - bottom}` }),
  );
  const known = areas.map((area, at) => ({ area, counts: chart.points[at] })).filter((point) => point.counts !== null);
  const ends = [];
  for (const location of known.length ? locations : []) {
    const at = known.map(({ area, counts }) => [chartX(area), chartY(100 * (counts[location] / counted.length))]);
    parts.push(
      draw("path", { class: `series series-${location}`, d: "M" + at.map((point) => point.join(" ")).join("L") }),
      ...at.filter((_, i) => i % 3 === 0).map(([x, y]) => marker(location, x, y)),
    );
    ends.push({ location, y: at[at.length - 1][1], x: at[at.length - 1][0] });
  }
  // Names at the ends of the lines, moved apart where lines meet.
  ends.sort((a, b) => a.y - b.y || locations.indexOf(a.location) - locations.indexOf(b.location));
  const room = chartY(0) + 4 - 15 * (ends.length - 1);
  let free = -Infinity;
  for (const [i, { location, x, y }] of ends.entries()) {
    const at = Math.max(Math.min(y + 4, room + 15 * i), free);
    free = at + 15;
    parts.push(marker(location, x + 14, at - 4), draw("text", { x: x + 24, y: at }, location));
  }
  const plot = draw(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      click: chooseArea,
      "aria-label":
        (data.labeled ? "Certified recall" : "Certified share of the output boxes") +
        " in percent against patch area; the table below has the values",
    },
    ...parts,
  );
  byId("chart").replaceChildren(plot);
}

function chooseArea(event) {
  const frame = event.currentTarget.getBoundingClientRect();
  const x = ((event.clientX - frame.left) / frame.width) * chart.width;
  const distance = areas.map((area) => Math.abs(chartX(area) - x));
  setAttack({ area: areas[distance.indexOf(Math.min(...distance))] });
}

function fillChartTable() {
  byId("chart-table").replaceChildren(
    table(
      ["patch area", ...locations],
      areas.map((area, at) => [
        areaWords(area),
        ...locations.map((location) => percent(100 * (chart.points[at][location] / counted.length))),
      ]),
    ),
  );
}
