// What is said beside the photograph.

// Where a strip ends inside the image.
function linesOf(n, mask) {
  const { from, to } = certificates.masksOf[n];
  return [from[mask], to[mask]].filter(Number.isFinite);
}

function maskWords(n, mask) {
  const { axis, from } = certificates.masksOf[n];
  const name = "xy"[axis[mask]],
    [first, second] = linesOf(n, mask);
  if (second !== undefined) return `everything from ${name} = ${first} to ${second}`;
  const words = Number.isFinite(from[mask]) ? ["right of", "below"] : ["left of", "above"];
  return `everything ${words[axis[mask]]} ${name} = ${first}`;
}

function proofWords(n, proof) {
  if (proof === null) return "this patch may hide it: no proof";
  const by = maskWords(n, proof.views[0].mask);
  return proof.kind === "alone"
    ? `this patch cannot hide it: seen with ${by} removed`
    : `this patch cannot hide it: ${proof.views.length} views together, the strongest with ${by} removed`;
}

function foundWords(n) {
  const found = certificates.found[n];
  const by = ["not found when nobody attacks", "found only undefended", "found only by masking", "found"][found];
  return found ? `${by}, score ${certificates.score[n].toFixed(2)}` : by;
}

function changeWords(n) {
  const change = changeOf(n, attack.where);
  return change === "same" ? " (as before)" : change === "gained" ? " (gained: not before)" : " (lost: it was before)";
}

function jointWords(real) {
  if (!real.length) return "";
  const { count } = view.joint;
  const of = real.length === 1 ? `This one ${thing}` : `Of these ${countWords(real.length)}, ${count}`;
  if (real.length === 1) return `${of} ${count ? "surely remains" : "may be hidden"}, wherever the patch lies.`;
  return `${of} surely ${count === 1 ? "remains" : "remain"}, wherever the patch lies.`;
}

// The largest object of each kind: what this patch can do to it.
function lesson(real) {
  const size = currentSize();
  const certified = (n, where) =>
    certificates.certified(n, where, size, attack.threshold) && !certificates.vacuous(n, where, size);
  const kinds = new Map();
  for (const n of [...real].sort((a, b) => certificates.size[b] - certificates.size[a])) {
    const from = [certified(n, "far") && "far from it", certified(n, "close") && "close to it"].filter(Boolean);
    const kind = certified(n, "anywhere") ? 0 : from.length ? 1 : 2;
    if (!kinds.has(kind)) kinds.set(kind, [n, from.join(" or ")]);
  }
  return [...kinds.keys()].sort().map((kind) => {
    const [n, from] = kinds.get(kind);
    const hidden = ["not even by a patch on it", `by a patch ${from}`][kind];
    const words = kind === 2 ? "is not certified" : `cannot be hidden${kind ? "" : ","} ${hidden}`;
    const name = apart(nameOf(n));
    const much = `${+(100 * certificates.size[n]).toPrecision(2)} %`;
    const symbol = make("span", { class: `mark ${kind === 2 ? "open" : "certified"}` }, kind === 2 ? "✗ " : "✓ ");
    return make("span", { class: "lesson" }, symbol, name, ` (${much} of the image) ${words}.`);
  });
}

function listObjects(size, proofs) {
  const objects = [...proofs.keys()].sort((a, b) => certificates.ignore[a] - certificates.ignore[b] || a - b);
  const real = objects.filter((n) => !certificates.ignore[n]);
  const hidden = real.filter((n) => proofs.get(n) === null).length;
  const may = make(
    "strong",
    { class: `mark ${hidden ? "open" : "certified"}` },
    !real.length
      ? `No ${things} here.`
      : hidden
        ? `✗ It may hide ${hidden} of ${countWords(real.length)}.`
        : `✓ It cannot hide ${real.length === 1 ? `the ${thing}` : `any of the ${countWords(real.length)}`}.`,
  );
  byId("patch-words").replaceChildren(`Patch of ${size[0]} × ${size[1]} pixels at (${view.x}, ${view.y}). `, may);
  const here = may.cloneNode(true);
  here.textContent = here.textContent.replace("It ", "Where it lies now, this patch ");
  byId("hero-words").replaceChildren(here, ...lesson(real));
  byId("sequence-words").replaceChildren(here.cloneNode(true));
  byId("joint-words").textContent = jointWords(real);
  const focused = document.activeElement?.dataset?.object;
  byId("objects").replaceChildren(
    ...objects.map((n) => {
      const kind = kindOf(n),
        proof = proofs.get(n);
      const where = certificates.whereIs(n, view.x, view.y, size);
      return make(
        "li",
        {},
        make(
          "button",
          {
            type: "button",
            "aria-pressed": String(n === view.object),
            "data-object": n,
            "data-proven": String(proof !== null),
            click: () => chooseObject(n),
          },
          make("span", { class: `mark ${kind}` }, `${KINDS[kind].symbol} `, apart(nameOf(n))),
          make(
            "span",
            { class: "soft" },
            `${areaWords(certificates.size[n])} of the image; ${foundWords(n)}; ${attack.where}: ${KINDS[kind].words}` +
              (before && !certificates.ignore[n] ? changeWords(n) : ""),
          ),
          make(
            "span",
            { class: "soft" },
            make("span", { class: `mark ${proof === null ? "open" : "certified"}` }, proof === null ? "✗" : "✓"),
            ` ${where}: ${proofWords(n, proof)}`,
          ),
        ),
      );
    }),
  );
  if (focused !== undefined) byId("objects").querySelector(`[data-object="${focused}"]`)?.focus();
}

function describeChosen(target, size) {
  const n = view.object,
    rows = [];
  if (target >= 0) {
    const { alone, safe, stars } = certificates.at(target, attack.threshold);
    const side = certificates.largestSquare(n, attack.threshold);
    const { width, height } = certificates.masksOf[n];
    const open = certificates.unproven(target, size, attack.threshold);
    const labels = certificates.targets[n].length;
    const total = (width + size[0] - 1) * (height + size[1] - 1);
    const left = open.reduce((sum, [x1, y1, x2, y2]) => sum + (x2 - x1 + 1) * (y2 - y1 + 1), 0);
    rows.push(
      [
        "largest square that cannot hide it, anywhere",
        side ? `${side} px, ${areaWords((side * side) / (width * height))}` : "none",
      ],
      ["positions of this patch without a proof", `${percent((100 * left) / total)} %`],
      ["masks under which one box decides alone", String(alone.length)],
    );
    if (data.only_halves) rows.push(["four lines XL, YT, XR, YB", fourLines(safe, width, height).join(", ")]);
    if (data.evidence) rows.push(["groups of views that add up", String(stars.length)]);
    if (labels > 1) {
      const shown = detectorName(certificates.target_label[target]);
      const words = make("span", {}, apart(shown), `, of ${labels} labels that stand for it`);
      rows.push(["as the detector calls it", words]);
    }
    if (certificates.target_partly[target])
      rows.push(["views that add up", "more than this page can hold: only what one mask alone proves is shown"]);
  }
  byId("chosen").replaceChildren(
    ...(n >= 0 ? [make("h3", {}, "Chosen: ", apart(nameOf(n)))] : []),
    make("dl", {}, ...rows.flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, value)])),
  );
}

// The furthest safe left and top mask, the nearest safe right and bottom one.
function fourLines(safe, width, height) {
  const before = safe.map((strips) => strips.find(([from]) => from === -Infinity)?.[1] ?? 0);
  const after = safe.map((strips, axis) => strips.find(([, to]) => to === Infinity)?.[0] ?? [width, height][axis]);
  return [...before, ...after];
}
