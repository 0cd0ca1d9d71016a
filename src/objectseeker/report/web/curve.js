// The curve: certified recall over patch sizes, computed while the reader looks, and a click chooses a size.

const MARKS = { far: "circle", close: "square", over: "triangle", anywhere: "diamond" };
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
  byId("chart-state").textContent = "(being computed)";
  chartWork.run(computeCurve({ ...attack }), () => {
    byId("chart-state").textContent = "";
    drawChart();
    fillChartTable();
    updateJoint();
  });
}

function* computeCurve({ aspect, threshold }) {
  for (const [at, area] of areas.entries()) {
    const found = Object.fromEntries(wheres.map((where) => [where, 0]));
    for (const n of counted) {
      const size = certificates.sizeFor(n, { area, aspect });
      for (const where of wheres) found[where] += certificates.certified(n, where, size, threshold);
      yield;
    }
    chart.points[at] = found;
    drawChart();
  }
}

function marker(where, x, y, r = 4) {
  const shape = MARKS[where],
    style = `dot series-${where}`;
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
  chart.width = Math.max(byId("chart").clientWidth, 300); // drawn at its own size: words stay readable
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
  const known = areas.map((area, at) => ({ area, found: chart.points[at] })).filter((point) => point.found !== null);
  const ends = [];
  for (const where of known.length ? wheres : []) {
    const at = known.map(({ area, found }) => [chartX(area), chartY(100 * (found[where] / counted.length))]);
    parts.push(
      draw("path", { class: `series series-${where}`, d: "M" + at.map((point) => point.join(" ")).join("L") }),
      ...at.filter((_, i) => i % 3 === 0).map(([x, y]) => marker(where, x, y)),
    );
    ends.push({ where, y: at[at.length - 1][1], x: at[at.length - 1][0] });
  }
  // Names at the ends of the lines, pushed apart where lines meet.
  ends.sort((a, b) => a.y - b.y || wheres.indexOf(a.where) - wheres.indexOf(b.where));
  const room = chartY(0) + 4 - 15 * (ends.length - 1);
  let free = -Infinity;
  for (const [i, { where, x, y }] of ends.entries()) {
    const at = Math.max(Math.min(y + 4, room + 15 * i), free);
    free = at + 15;
    parts.push(marker(where, x + 14, at - 4), draw("text", { x: x + 24, y: at }, where));
  }
  const picture = draw(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      click: chooseArea,
      "aria-label":
        (data.labeled ? "Certified recall" : "Certified share of the boxes it outputs") +
        " in percent against patch area; the table below has the values",
    },
    ...parts,
  );
  byId("chart").replaceChildren(picture);
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
      ["patch area", ...wheres],
      areas.map((area, at) => [
        areaWords(area),
        ...wheres.map((where) => percent(100 * (chart.points[at][where] / counted.length))),
      ]),
    ),
  );
}
