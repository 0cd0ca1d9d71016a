// What is written next to the image.

// The strips that a mask removes.
function stripsOfMask(n, mask) {
  const { axis, from, to, stripsOf } = side.certificates.masksOf[n];
  return stripsOf[mask].map((strip) => ({ axis: axis[strip], from: from[strip], to: to[strip] }));
}

function stripWords({ axis, from, to }) {
  const name = "xy"[axis];
  if (Number.isFinite(from) && Number.isFinite(to)) return `from ${name} = ${from} to ${to}`;
  return Number.isFinite(from) ? `${["right of", "below"][axis]} ${name} = ${from}` : `${["left of", "above"][axis]} ${name} = ${to}`;
}

const maskWords = (n, mask) => `everything ${stripsOfMask(n, mask).map(stripWords).join(", ")}`;

const positionOf = (proof) => side.positions[proof === null ? "unproven" : "proven"];
const countShown = (count) => plural(count, ...side.things);

function proofWords(n, proof) {
  if (proof === null) return side.notProven;
  const removes = maskWords(n, proof.views[0].mask);
  return proof.kind === "single_view"
    ? `${side.provenBy} the view that removes ${removes}`
    : `proven by ${proof.views.length} views combined; the strongest removes ${removes}`;
}

function detectedWords(n) {
  const found = side.certificates.found[n];
  const words = ["not detected", "detected only undefended", "recovered by masking", "detected"][found];
  return found ? `${words}, score ${side.certificates.score[n].toFixed(2)}` : `${words} without an attack`;
}

function changeWords(n) {
  if (!verdicts.known[n] || !baselineVerdicts.known[n]) return "";
  const change = changeOf(n, attack.location);
  return { same: " (unchanged)", gained: " (gained since the baseline)", lost: " (lost since the baseline)" }[change];
}

function jointWords(counting) {
  if (!counting.length) return "";
  const { count } = view.joint;
  if (side === SIDES.fabricate)
    return `Joint certificate: one such patch, at any position, made at most ${counting.length - count} of ${countShown(counting.length)}.`;
  return (
    `Joint certificate: ${count} of ${countWords(counting.length)} ${count === 1 || counting.length === 1 ? "is" : "are"} guaranteed ` +
    "to remain under this patch at any position; one output box may cover several."
  );
}

const MAX_KINDS = 4;
// A row per kind of certificate, with its largest object: at which locations it is certified.
function kindTable(counting) {
  const size = currentSize();
  const kinds = new Map();
  for (const n of [...counting].sort((a, b) => side.certificates.size[b] - side.certificates.size[a])) {
    const { certificates: by, styles: names } = side;
    const styles = locations.map((location) =>
      by.vacuous(n, location, size)
        ? names.vacuous
        : by.certified(n, location, size, attack.threshold)
          ? names.certified
          : names.uncertified,
    );
    const kind = styles.map((style) => VERDICTS[style].sign).join("");
    if (!kinds.has(kind)) kinds.set(kind, { n, styles, others: 0 });
    else kinds.get(kind).others += 1;
  }
  const rows = [...kinds.values()].slice(0, MAX_KINDS).map(({ n, styles, others }) => {
    const share = `, ${+(100 * side.certificates.size[n]).toPrecision(2)} %`;
    const name = make("span", {}, isolate(side.nameOf(n)), share, others ? `, and ${others} more` : "");
    return [name, ...styles.map((style) => signOf(style))];
  });
  return rows.length ? table([`${side.things[0]}, share of image`, ...locations], rows) : "";
}
function listObjects(size, proofs) {
  const objects = [...proofs.keys()].sort((a, b) => side.certificates.ignore[a] - side.certificates.ignore[b] || a - b);
  const counting = objects.filter((n) => !side.certificates.ignore[n]);
  const unproven = counting.filter((n) => proofs.get(n) === null).length;
  const style = side.positions[unproven ? "unproven" : "proven"];
  const here = () =>
    counting.length
      ? signOf(style, side.here(unproven, counting.length))
      : make("strong", {}, `No ${side.things[1]} here.`);
  byId("patch-words").replaceChildren(`Patch of ${size[0]} × ${size[1]} pixels at (${view.x}, ${view.y}). `, here());
  byId("hero-words").replaceChildren(here(), kindTable(counting));
  byId("sequence-words").replaceChildren(here());
  byId("joint-words").textContent = jointWords(counting);
  const focused = document.activeElement?.dataset?.object;
  byId("objects").replaceChildren(...objects.map((n) => objectItem(n, proofs.get(n), size)));
  if (focused !== undefined) byId("objects").querySelector(`[data-object="${focused}"]`)?.focus();
}

const NOW_WORDS = { far: "far from", close: "close to", over: "over" };

function objectItem(n, proof, size) {
  const style = verdictIn(side, n);
  const change = baseline && side === SIDES.hide && !certificates.ignore[n] ? changeWords(n) : "";
  const button = make(
    "button",
    {
      type: "button",
      "aria-pressed": String(n === view.object),
      "data-object": n,
      "data-proven": String(proof !== null),
      click: () => chooseObject(n),
    },
    isolate(side.nameOf(n)),
    make("span", { class: "soft" }, `${areaWords(side.certificates.size[n])} of the image; ${detectedWords(n)}`),
    make(
      "span",
      {},
      signOf(style, `${attack.location}: ${VERDICTS[style].words}`),
      make("span", { class: "soft-inline" }, change),
    ),
    make(
      "span",
      {},
      signOf(positionOf(proof)),
      `patch ${NOW_WORDS[side.certificates.locationOf(n, view.x, view.y, size)]} it: ${proofWords(n, proof)}`,
    ),
  );
  return make("li", {}, button);
}

function describeChosen(target, size) {
  const n = view.object,
    rows = [];
  if (target >= 0) {
    const { single, safe, stars } = side.certificates.at(target, attack.threshold);
    const square = side.certificates.largestSquare(n, attack.threshold);
    const { width, height } = side.certificates.masksOf[n];
    const unproven = side.certificates.unproven(target, size, attack.threshold);
    const labelCount = side.certificates.targets[n].length;
    const total = (width + size[0] - 1) * (height + size[1] - 1);
    const left = unproven.reduce((sum, [x1, y1, x2, y2]) => sum + (x2 - x1 + 1) * (y2 - y1 + 1), 0);
    rows.push(
      [side.rows[0], square ? `${square} px, ${areaWords((square * square) / (width * height))}` : "none"],
      [side.rows[1], `${percent((100 * left) / total)} %`],
      [side.rows[2], String(single.length)],
    );
    if (data.only_halves) rows.push(["safe lines: left, top, right, bottom", safeLines(safe, width, height).join(", ")]);
    if (data.evidence && side === SIDES.hide) rows.push(["proofs from several views", String(stars.length)]);
    if (labelCount > 1) {
      const shown = detectorName(side.certificates.target_label[target]);
      rows.push(["detector class", make("span", {}, isolate(shown), `, one of ${labelCount} that map to this class`)]);
    }
    if (side.certificates.target_truncated[target])
      rows.push(["proofs from several views", "more than this page can hold: only proofs by a single view are shown"]);
  }
  byId("chosen").replaceChildren(
    ...(n >= 0 ? [make("h3", {}, "Chosen: ", isolate(side.nameOf(n)))] : []),
    make("dl", {}, ...rows.flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, value)])),
  );
}

// The furthest safe left and top mask, the nearest safe right and bottom one.
function safeLines(safe, width, height) {
  const before = safe.map((strips) => strips.find(([from]) => from === -Infinity)?.[1] ?? 0);
  const after = safe.map((strips, axis) => strips.find(([, to]) => to === Infinity)?.[0] ?? [width, height][axis]);
  return [...before, ...after];
}
