// The overview: what the defence costs, what it certifies, by class and by size, and the curve over patch sizes.

const MARKS = { far: "circle", close: "square", over: "triangle", anywhere: "diamond" };
const chartWork = new Work();
const chart = { key: "", points: [], width: 720, height: 330, left: 34, right: 96, top: 12, bottom: 40 };

function share(objects, where) {
  const { certified, vacuous } = verdicts[where];
  let yes = 0,
    empty = 0;
  for (const n of objects) {
    yes += certified[n];
    empty += vacuous[n];
  }
  return { yes, empty, recall: 100 * (yes / objects.length) }; // in the order of evaluation.replayed.shares
}

function card(title, value, ...words) {
  return make(
    "div",
    { class: "card" },
    make("div", {}, title),
    make("div", { class: "value" }, value),
    ...words.map((line) => make("div", { class: "soft" }, line)),
  );
}

// What there is to say of the detector: without labels neither AP nor recall.
function headlines() {
  if (!data.labelled) {
    const more = data.objects - data.base_boxes;
    return [
      card("Boxes it outputs", String(data.objects), `${more} of them only found by masking`),
      card("Seen", plural(data.images, "image"), "without labels: nobody says what should be found"),
    ];
  }
  const { undefended, defended } = data;
  const loss = undefended.ap50 - defended.ap50;
  return [
    card("Undefended, clean AP50", `${percent(undefended.ap50)} %`, `COCO's AP50: ${percent(undefended.ap50_coco)} %`),
    card(
      "Defended, clean AP50",
      `${percent(defended.ap50)} %`,
      `${percent(Math.abs(loss), 2)} points ${loss >= 0 ? "below" : "above"} undefended`,
    ),
    card("Clean recall", `${percent(defended.clean_recall)} %`, "mean over classes, defended, where it is certified"),
    card("Seen", plural(data.images, "image"), `${plural(data.objects, "object")}, ${data.ignored} more ignored`),
  ];
}

function fillOverview() {
  byId("remarks").replaceChildren(...data.remarks.map((line) => make("p", { class: "notice" }, line)));
  byId("cards").replaceChildren(...headlines());
  const list = (id, pairs) =>
    byId(id).replaceChildren(
      ...Object.entries(pairs).flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, value)]),
    );
  list("settings", data.settings);
  byId("of-class").hidden = !data.classwise;
  const unsaid = [data.by_iou ? ".by-ioa" : ".by-iou", data.labelled ? ".of-boxes" : ".of-labels"];
  for (const words of document.querySelectorAll(unsaid)) words.hidden = true;
  list("provenance", { ...data.provenance, "report written by": `objectseeker ${data.version}` });
}

function showRecalls() {
  byId("recalls").replaceChildren(
    ...wheres.map((where) => {
      const { yes, empty, recall } = share(counted, where);
      const key = draw(
        "svg",
        { class: "key", viewBox: "0 0 36 16", "aria-hidden": "true" },
        draw("path", { class: `series series-${where}`, d: "M0 8H36" }),
        marker(where, 18, 8),
      );
      const words = [`${yes} of ${countWords(counted.length)}${data.labelled ? "" : " it outputs"}`];
      if (where === "far" || empty) words.push(`${empty} of them vacuous: no position is ${where}`);
      const shown = card("", `${percent(recall)} %`, ...words);
      shown.firstChild.append(key, capital(where));
      shown.dataset.where = where;
      return shown;
    }),
  );
  const groups = (rows) =>
    rows.map(([first, objects, ...more]) => {
      const recalls = wheres.map((where) => share(objects, where));
      return [
        first,
        String(objects.length),
        ...more,
        ...recalls.map((one) => (objects.length ? percent(one.recall) : "–")),
        String(recalls[0].empty),
      ];
    });
  const whose = data.labelled ? things : `${things} it outputs`;
  const certifiedColumns = [...wheres.map((where) => (data.labelled ? where : `certified ${where}`)), "vacuous far"];
  const figures = data.labelled ? ["undefended AP50", "AP50", "clean recall"] : [];
  byId("classes").replaceChildren(
    table(
      ["class", whose, ...figures, ...certifiedColumns],
      groups(
        data.per_class.map((row) => [
          data.names[row.label],
          counted.filter((n) => certificates.label[n] === row.label),
          ...(data.labelled ? [row.undefended_ap50, row.ap50, row.clean_recall].map((value) => percent(value)) : []),
        ]),
      ),
    ),
  );
  byId("sizes").replaceChildren(
    table(
      ["share of the image", whose, ...certifiedColumns],
      groups(sizeBins.slice(1).map((_, bin) => [sizeWords(bin), counted.filter((n) => binOf(n) === bin)])),
    ),
  );
}

// A bin holds the shares above its first limit up to and including its second, as in evaluation.sweeps.
function binOf(n) {
  return sizeBins.findIndex((low, bin) => certificates.size[n] > low && certificates.size[n] <= sizeBins[bin + 1]);
}
const sizeWords = (bin) => `${areaWords(sizeBins[bin])} to ${areaWords(sizeBins[bin + 1])}`;

function updateChart() {
  const key = `${attack.aspect} ${attack.threshold}`;
  if (chart.key === key) {
    drawChart();
    return;
  }
  chart.key = key;
  chart.points = areas.map(() => null);
  byId("chart-state").textContent = "(being computed)";
  chartWork.run(computeCurve({ ...attack }), () => {
    byId("chart-state").textContent = "";
    drawChart();
    fillChartTable();
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
        (data.labelled ? "Certified recall" : "Certified share of the boxes it outputs") +
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
