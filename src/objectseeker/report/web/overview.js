// The overview: the sentence that says it all, what the defense certifies and costs, by class and by size.

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
  if (!data.labeled) {
    const more = data.objects - data.base_boxes;
    return [
      card("Boxes it outputs", String(data.objects), `${more} of them only found by masking`),
      card("Seen", plural(data.images, "image"), "without labels: nobody says what should be found"),
    ];
  }
  const seen = card(
    "Seen",
    plural(data.images, "image"),
    `${plural(data.objects, "object")}, ${data.ignored} more ignored`,
  );
  if (!data.measured) return [seen];
  const { undefended, defended } = data;
  const change = defended.ap50 - undefended.ap50;
  return [
    card("Undefended, clean AP50", `${percent(undefended.ap50)} %`, `COCO's AP50: ${percent(undefended.ap50_coco)} %`),
    card(
      "Defended, clean AP50",
      `${percent(defended.ap50)} %`,
      `${percent(Math.abs(change), 2)} points ${change <= 0 ? "below" : "above"} undefended`,
    ),
    card("Clean recall", `${percent(defended.clean_recall)} %`, "mean over classes, defended, where it is certified"),
    seen,
  ];
}

const whose = () =>
  `Of ${countWords(counted.length)} ${data.labeled ? "in" : "that the defended detector outputs on"} ` +
  plural(data.images, "image");

// The report in one sentence.
function sentence() {
  const { yes } = share(counted, "anywhere");
  const patch = `patch of ${areaWords(attack.area)} of the image`;
  return `${whose()}, ${yes.toLocaleString("en")} cannot be hidden by any ${patch}, wherever it lies.`;
}

const jointWork = new Work();
const joint = { key: "", count: 0 };

// Of all objects, how many remain at the worst place of one patch in each image.
function* countRemaining({ area, aspect, threshold }) {
  joint.count = 0;
  for (let i = 0; i < data.images; i++) {
    const objects = objectsOf(i).filter((n) => !certificates.ignore[n]);
    if (!objects.length) continue;
    // What is certified anywhere remains at any place.
    const open = objects.filter((n) => !verdicts.anywhere.certified[n]);
    const { width, height } = data.masks[data.image_masks[i]];
    const size = patchSize(area, aspect, width, height);
    joint.count += objects.length - open.length + remainingOf(certificates, open, size, threshold).count;
    yield;
  }
}

function updateJoint() {
  const key = `${attack.area} ${attack.aspect} ${attack.threshold}`;
  if (joint.key === key) return;
  joint.key = "";
  byId("joint").textContent = "Of all of them under one patch: being computed.";
  jointWork.run(countRemaining({ ...attack }), () => {
    joint.key = key;
    const words = `${joint.count.toLocaleString("en")} of ${countWords(counted.length)}`;
    byId("joint").textContent =
      `All at once: one patch in each image leaves at least ${words} ` +
      `(${percent(100 * (joint.count / counted.length))} %), wherever it lies.`;
  });
}

function fillOverview() {
  const remarks = byId(data.labeled ? "remarks" : "remarks-above");
  remarks.replaceChildren(...data.remarks.map((line) => make("p", { class: "notice" }, line)));
  byId("overview-title").textContent = `${whose()}: being computed.`;
  byId("cards").replaceChildren(...headlines());
  const list = (id, pairs) =>
    byId(id).replaceChildren(
      ...Object.entries(pairs).flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, value)]),
    );
  list("settings", data.settings);
  byId("of-class").hidden = !data.classwise;
  const unsaid = [data.by_iou ? ".by-ioa" : ".by-iou", data.labeled ? ".of-boxes" : ".of-labels"];
  if (!data.measured) unsaid.push(".of-ap");
  for (const words of document.querySelectorAll(unsaid)) words.hidden = true;
  list("provenance", { ...data.provenance, "report written by": `objectseeker ${data.version}` });
}

function showRecalls() {
  byId("overview-title").textContent = sentence();
  byId("recalls").replaceChildren(
    ...wheres.map((where) => {
      const { yes, empty, recall } = share(counted, where);
      const key = draw(
        "svg",
        { class: "key", viewBox: "0 0 36 16", "aria-hidden": "true" },
        draw("path", { class: `series series-${where}`, d: "M0 8H36" }),
        marker(where, 18, 8),
      );
      const words = [`${yes} of ${countWords(counted.length)}${data.labeled ? "" : " it outputs"}`];
      if (empty) words.push(`${empty} of them vacuous: so large that no position is ${where}`);
      else if (where === "far") words.push("none of them vacuous");
      const shown = card("", `${percent(recall)} %`, ...words);
      shown.firstChild.append(key, capital(where));
      shown.dataset.where = where;
      return shown;
    }),
  );
  const figures = data.measured ? ["undefended AP50", "AP50"] : [];
  if (data.labeled) figures.push("clean recall");
  const ap = (row) => (data.measured ? [row.undefended_ap50, row.ap50] : []);
  const of = (row) => [...ap(row), ...(data.labeled ? [row.clean_recall] : [])];
  byId("classes").replaceChildren(
    table(
      ["class", ...figures, ...recallColumns()],
      recallRows(
        data.per_class.map((row) => [
          data.names[row.label],
          counted.filter((n) => certificates.label[n] === row.label),
          ...of(row).map((value) => percent(value)),
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

// The last columns of every table of groups, and its rows: a name, its objects, and cells of its own in between.
function recallColumns() {
  const whose = data.labeled ? things : `${things} it outputs`;
  return [whose, ...wheres.map((where) => (data.labeled ? where : `certified ${where}`)), "vacuous far"];
}
function recallRows(groups) {
  return groups.map(([name, objects, ...more]) => {
    const recalls = wheres.map((where) => share(objects, where));
    const shown = recalls.map((one) => (objects.length ? percent(one.recall) : "–"));
    return [name, ...more.map(String), String(objects.length), ...shown, String(recalls[0].empty)];
  });
}

// A bin holds the shares above its first limit up to and including its second, as in evaluation.sweeps.
function binOf(n) {
  return sizeBins.findIndex((low, bin) => certificates.size[n] > low && certificates.size[n] <= sizeBins[bin + 1]);
}
const sizeWords = (bin) => `${areaWords(sizeBins[bin])} to ${areaWords(sizeBins[bin + 1])}`;
