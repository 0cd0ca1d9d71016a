// The overview: the report in one sentence, what the defense certifies and costs, by class, size and slice, and what
// changed since the baseline.

function share(objects, location) {
  const { certified, vacuous } = verdicts[location];
  let yes = 0,
    empty = 0;
  for (const n of objects) {
    yes += certified[n];
    empty += vacuous[n];
  }
  return { yes, empty, recall: 100 * (yes / objects.length) }; // in the order of operations of `evaluate`
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

// Clean performance: without annotations neither AP nor recall.
function headlines() {
  if (!data.labeled) {
    const recovered = data.objects - data.base_boxes;
    return [
      card("Output boxes", String(data.objects), `${recovered} of them recovered by masking`),
      card("Sample", plural(data.images, "image"), "without annotations: no ground truth"),
    ];
  }
  const sample = card(
    "Sample",
    plural(data.images, "image"),
    `${plural(data.objects, "object")}, ${data.ignored} more ignored`,
  );
  if (!data.shows_ap) return [sample];
  const { undefended, defended } = data;
  const change = defended.ap50 - undefended.ap50;
  return [
    card("Undefended, clean AP50", `${percent(undefended.ap50)} %`, `COCO's AP50: ${percent(undefended.ap50_coco)} %`),
    card(
      "Defended, clean AP50",
      `${percent(defended.ap50)} %`,
      `${percent(Math.abs(change), 2)} points ${change <= 0 ? "below" : "above"} undefended`,
    ),
    card("Clean recall", `${percent(defended.clean_recall)} %`, "defended, mean over classes, at the operating point"),
    sample,
  ];
}

const sampleWords = () =>
  `${countWords(counted.length)} ${data.labeled ? "in" : "that the defended detector outputs on"} ` +
  plural(data.images, "image");

// The report in one sentence.
function sentence() {
  const { yes } = share(counted, "anywhere");
  const shape = attack.aspect === 1 ? "square patch" : `patch (${aspectWords(attack.aspect)})`;
  return (
    `${yes.toLocaleString("en")} of ${sampleWords()} ${yes === 1 ? "is" : "are"} certified against a ${shape} of ` +
    `${areaWords(attack.area)} of the image at any position.`
  );
}

const jointWork = new Work();
const joint = { key: "", count: 0 };

// The number of objects that remain at the worst-case position of one patch per image.
function* countRemaining({ area, aspect, threshold }) {
  joint.count = 0;
  for (let i = 0; i < data.images; i++) {
    const objects = objectsOf(i).filter((n) => !certificates.ignore[n]);
    if (!objects.length) continue;
    // An object that is certified anywhere remains at every position.
    const open = objects.filter((n) => !verdicts.anywhere.certified[n]);
    const { width, height } = data.masks[data.image_masks[i]];
    const size = patchSize(area, aspect, width, height);
    joint.count += objects.length - open.length + jointCertificate(certificates, open, size, threshold).count;
    yield;
  }
}

function updateJoint() {
  const key = `${attack.area} ${attack.aspect} ${attack.threshold}`;
  if (joint.key === key) return;
  joint.key = "";
  if (document.body.classList.contains("certifying")) return; // it is called again when the verdicts are known
  byId("joint").textContent = "Joint certificate: computing …";
  jointWork.run(countRemaining({ ...attack }), () => {
    joint.key = key;
    const words = `${joint.count.toLocaleString("en")} of ${countWords(counted.length)}`;
    byId("joint").textContent =
      `Joint certificate: at least ${words} (${percent(100 * (joint.count / counted.length))} %) are guaranteed to ` +
      "remain under one patch per image, at any position; one output box may cover several.";
  });
}

function fillOverview() {
  const caveats = byId(data.labeled ? "caveats" : "caveats-above");
  caveats.replaceChildren(...data.caveats.map((line) => make("p", { class: "notice" }, line)));
  byId("overview-title").textContent = `Certifying ${sampleWords()} …`;
  byId("cards").replaceChildren(...headlines());
  const list = (id, pairs) =>
    byId(id).replaceChildren(
      ...Object.entries(pairs).flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, value)]),
    );
  list("settings", data.settings);
  byId("of-class").hidden = !data.classwise;
  const hidden = [data.by_iou ? ".if-ioa" : ".if-iou", data.labeled ? ".if-unlabeled" : ".if-labeled"];
  if (!data.shows_ap) hidden.push(".if-ap");
  for (const words of document.querySelectorAll(hidden)) words.hidden = true;
  list("provenance", { ...data.provenance, "report written by": `objectseeker ${data.version}` });
}

function showRecalls() {
  byId("overview-title").textContent = sentence();
  byId("recalls").replaceChildren(
    ...locations.map((location) => {
      const { yes, empty, recall } = share(counted, location);
      const key = draw(
        "svg",
        { class: "key", viewBox: "0 0 36 16", "aria-hidden": "true" },
        draw("path", { class: `series series-${location}`, d: "M0 8H36" }),
        marker(location, 18, 8),
      );
      const words = [`${yes} of ${countWords(counted.length)}`];
      if (empty) words.push(`${empty} of them vacuous: so large that no position is ${location}`);
      else if (location === "far") words.push("none of them vacuous");
      const shown = card("", `${percent(recall)} %`, ...words);
      shown.firstChild.append(key, capital(location));
      shown.dataset.location = location;
      return shown;
    }),
  );
  const clean = data.shows_ap ? ["undefended AP50", "AP50"] : [];
  if (data.labeled) clean.push("clean recall");
  const ap = (row) => (data.shows_ap ? [row.undefended_ap50, row.ap50] : []);
  const metricsOf = (row) => [...ap(row), ...(data.labeled ? [row.clean_recall] : [])];
  byId("classes").replaceChildren(
    table(
      ["class", ...clean, ...recallColumns()],
      recallRows(
        data.per_class.map((row) => [
          data.names[row.label],
          counted.filter((n) => certificates.label[n] === row.label),
          ...metricsOf(row).map((value) => percent(value)),
        ]),
      ),
    ),
  );
  byId("sizes").replaceChildren(
    table(
      ["share of the image", ...recallColumns()],
      recallRows(sizeBins.slice(1).map((_, bin) => [sizeWords(bin), counted.filter((n) => binOf(n) === bin)])),
    ),
  );
}

// The last columns of every table of groups, and its rows: a name, its objects, and further cells in between.
function recallColumns() {
  const count = data.labeled ? things : `output ${things}`;
  return [count, ...locations.map((location) => (data.labeled ? location : `certified ${location}`)), "vacuous far"];
}
function recallRows(groups) {
  return groups.map(([name, objects, ...more]) => {
    const recalls = locations.map((location) => share(objects, location));
    const shown = recalls.map((one) => (objects.length ? percent(one.recall) : "–"));
    return [name, ...more.map(String), String(objects.length), ...shown, String(recalls[0].empty)];
  });
}

// A bin holds the shares above its first limit up to and including its second, as in metrics.sweeps.
function binOf(n) {
  return sizeBins.findIndex((low, bin) => certificates.size[n] > low && certificates.size[n] <= sizeBins[bin + 1]);
}
const sizeWords = (bin) => `${areaWords(sizeBins[bin])} to ${areaWords(sizeBins[bin + 1])}`;

// Slices: certified recall by the tags of the images, and the worst slice of every tag.

const slices = data.tags.flatMap(({ name, values, of_image: ofImage }) =>
  values.map((value, at) => {
    const images = new Set(ofImage.flatMap((one, i) => (one === at ? [i] : [])));
    const objects = counted.filter((n) => images.has(certificates.image[n]));
    return { column: name, name: `${name}=${value}`, images, objects };
  }),
);

function showSlices() {
  byId("slices").hidden = !slices.length;
  const rows = slices.map((one) => [one.name, one.objects, one.images.size]);
  byId("slices-table").replaceChildren(table(["slice", "images", ...recallColumns()], recallRows(rows)));
  byId("worst-slices").replaceChildren(...data.tags.map(({ name }) => make("li", {}, ...worstSlice(name))));
}

// As metrics.slices.worst_slices: lowest share certified anywhere, among the slices with enough objects.
function worstSlice(column) {
  const limit = data.controls.min_slice_objects;
  const own = slices.filter((one) => one.column === column);
  const small = own.filter((one) => one.objects.length < limit);
  const recall = new Map(own.map((one) => [one, share(one.objects, "anywhere").recall]));
  const [worst] = own
    .filter((one) => !small.includes(one))
    .sort((a, b) => recall.get(a) - recall.get(b) || b.objects.length - a.objects.length);
  const skipped = small.length ? `${small.length} with fewer than ${limit} ${things} skipped` : "";
  if (worst === undefined) return ["worst ", isolate(column), `: unknown, ${skipped}`];
  const words = `, ${percent(recall.get(worst))} % of ${countWords(worst.objects.length)} certified anywhere`;
  return ["worst ", isolate(column), ": ", isolate(worst.name), words, skipped && `; ${skipped}`];
}

// The baseline: another run or defense of the same objects; what was gained since, and what was lost.

const baseline = data.baseline && new Certificates(data.baseline, (name) => byId(`column-baseline_${name}`).textContent);
let baselineVerdicts = baseline && emptyVerdicts();

function changeOf(n, location) {
  const [previous, current] = [baselineVerdicts, verdicts].map((one) => one[location].certified[n]);
  return current === previous ? "same" : current ? "gained" : "lost";
}

function showChanges() {
  byId("changes").hidden = baseline === null;
  if (baseline === null) return;
  byId("baseline-name").textContent = data.baseline.name;
  const rows = locations.map((location) => {
    const changes = counted.map((n) => changeOf(n, location));
    const previous = counted.reduce((sum, n) => sum + baselineVerdicts[location].certified[n], 0);
    const link = (change) => {
      const number = changes.filter((one) => one === change).length;
      if (!number) return "0";
      return make("a", { href: "#images", click: () => chooseChange(change, location) }, String(number));
    };
    const recalls = [100 * (previous / counted.length), share(counted, location).recall];
    return [`certified ${location}`, ...recalls.map((one) => percent(one)), link("gained"), link("lost")];
  });
  const { metrics } = data.baseline;
  rows.push(
    ["AP50, undefended", percent(metrics.undefended.ap50), percent(data.undefended.ap50), "", ""],
    ["AP50, defended", percent(metrics.defended.ap50), percent(data.defended.ap50), "", ""],
    ["clean recall", percent(metrics.defended.clean_recall), percent(data.defended.clean_recall), "", ""],
  );
  byId("changes-table").replaceChildren(table(["percent", "baseline", "now", "gained", "lost"], rows));
}

function chooseChange(change, location) {
  byId("filters").reset();
  byId("filter-change").value = change;
  setAttack({ location });
}
