// What every part of the page uses: the data, the state, the verdicts for the chosen patch, and how elements are made.

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const certificates = new Certificates(data, (name) => byId(`column-${name}`).textContent);
// The same certification for the output boxes, by the masks that support them: can a patch have made a box?
const fabrication = new Certificates({ ...data, ...data.fabrication }, (name) => byId(`column-fabrication_${name}`).textContent);
const { areas, aspects, thresholds, locations, start, size_bins: sizeBins } = data.controls;
const attack = { ...start };

const SVG = byId("image-view").namespaceURI;

// Strings always go in as text: no name of a class or a file can become markup.
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false)
      element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}
const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

function table(head, rows) {
  return make(
    "table",
    {},
    make("thead", {}, make("tr", {}, ...head.map((cell) => make("th", { scope: "col" }, cell)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, cell))))),
  );
}

const capital = (word) => word[0].toUpperCase() + word.slice(1);
// Rounded as Python rounds: a tie goes to the even digit, where toFixed goes up. Only whole multiples of a power of two
// can be halfway, and scaling by that power is exact.
function percent(value, digits = 1) {
  if (!Number.isFinite(value)) return "–";
  const up = value.toFixed(digits);
  const tie = (Math.abs(value) * 2 ** (digits + 1)) % 2 === 1;
  return tie && up.at(-1) % 2 === 1 ? (value - 0.25 / 10 ** digits).toFixed(digits) : up;
}
const plural = (count, word, words = word + "s") => `${count.toLocaleString("en")} ${count === 1 ? word : words}`;
// Without annotations the objects are the boxes that the defended detector outputs, and are called boxes.
const [thing, things] = data.labeled ? ["object", "objects"] : ["box", "boxes"];
const countWords = (count) => plural(count, thing, things);
const areaWords = (area) => `${+(100 * area).toPrecision(3)} %`;
function aspectWords(aspect) {
  if (aspect === 1) return "square";
  return aspect > 1 ? `${+aspect.toPrecision(3)} : 1, wide` : `1 : ${+(1 / aspect).toPrecision(3)}, tall`;
}
const LOCATION_WORDS = {
  far: "the patch is more than 10 % of the image away from the object",
  close: "the patch is next to the object, at most 10 % of the image away",
  over: "the patch overlaps the object",
  anywhere: "the patch may be at any position",
};
// What the chosen location and T mean, where they are chosen.
function meaningWords() {
  const share = `${+(100 * attack.threshold).toPrecision(3)} %`;
  const required = data.by_iou
    ? `has an IoU above ${attack.threshold} with the object`
    : attack.threshold === 0
      ? "overlaps the object"
      : `covers more than ${share} of the object`;
  const position = `${capital(attack.location)}: ${LOCATION_WORDS[attack.location]}.`;
  if (side === SIDES.fabricate) return `${position} T, and all shares on this page, are about hiding.`;
  return `${position} T = ${attack.threshold}: the box that is guaranteed to remain ${required}.`;
}
const attackWords = () =>
  `${areaWords(attack.area)} of the image, ${aspectWords(attack.aspect)}, ${attack.location}, T = ${attack.threshold}`;

// Images and details come after the script: the page works before they are read. null: not there (yet).
function stored(id) {
  const element = byId(id);
  return element === null ? null : element.textContent;
}
const missing = new Set(data.image_missing);
function imageAddress(kind, i) {
  if (missing.has(i)) return null;
  if (data.image_folder !== null) return `${data.image_folder}/${kind}-${i}.jpg`;
  const content = stored(`${kind}-${i}`);
  return content === null ? null : "data:image/jpeg;base64," + content;
}
function whenRead(action) {
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", action, { once: true });
  else action();
}

// Long work in short slices: the page stays responsive, and new work of the same kind replaces the old.
const SLICE = 12; // milliseconds
class Work {
  run(steps, done) {
    const job = (this.current = {});
    const go = () => {
      if (this.current !== job) return;
      for (const until = performance.now() + SLICE; performance.now() < until;) {
        if (steps.next().done) {
          this.current = null;
          done();
          return;
        }
      }
      setTimeout(go);
    };
    go();
  }
}

// The verdicts of objects for one patch and T, per location; `known` marks the objects that have theirs.
const everyObject = Array.from({ length: certificates.count }, (_, n) => n);
function* certifyObjects({ area, aspect, threshold }, objects, verdicts, by = certificates) {
  for (const n of objects) {
    const size = by.sizeFor(n, { area, aspect });
    for (const location of locations) {
      verdicts[location].certified[n] = by.certified(n, location, size, threshold);
      verdicts[location].vacuous[n] = by.vacuous(n, location, size);
    }
    verdicts.known[n] = 1;
    yield;
  }
}
function emptyVerdicts(by = certificates) {
  const flags = () => new Uint8Array(by.count);
  const perLocation = locations.map((location) => [location, { certified: flags(), vacuous: flags() }]);
  return { known: flags(), ...Object.fromEntries(perLocation) };
}
const counted = everyObject.filter((n) => !certificates.ignore[n]);
let verdicts = emptyVerdicts(); // for the chosen patch

const squares = { threshold: undefined, side: new Int32Array(certificates.count) };
function* measureSquares(threshold) {
  if (squares.threshold === threshold) return;
  squares.threshold = undefined;
  for (let n = 0; n < certificates.count; n++) {
    squares.side[n] = certificates.largestSquare(n, threshold);
    yield;
  }
  squares.threshold = threshold;
}

// The two sides of a patch, each with its boxes, signs and words. The image shows one of them, `side`; all other parts of
// the page are about hiding.
const SIDES = {
  hide: {
    certificates,
    get verdicts() {
      return verdicts;
    },
    question: "Can this patch hide the object?",
    things: [thing, things],
    styles: { certified: "certified", uncertified: "uncertified", vacuous: "vacuous" },
    positions: { proven: "proven", unproven: "unproven" },
    layers: {},
    nameOf: (n) => nameOf(n),
    notProven: "not proven at this position",
    provenBy: "proven by",
    here: (unproven, count) =>
      unproven
        ? `${unproven} of ${countWords(count)} ${unproven === 1 ? "is" : "are"} not proven at this patch position.`
        : `${count === 1 ? `The ${thing} is` : `All ${countWords(count)} are`} proven at this patch position.`,
    rows: ["largest certified square, anywhere", "unproven patch positions", "safe masks (single view)"],
  },
  fabricate: {
    certificates: fabrication,
    verdicts: emptyVerdicts(fabrication),
    question: "Could this patch have made this box?",
    things: ["box", "boxes"],
    styles: { certified: "not-fabricated", uncertified: "maybe-fabricated", vacuous: "no-position" },
    positions: { proven: "supported", unproven: "unsupported" },
    layers: {
      objects: "output boxes",
      positions: "patch positions at which the chosen box has no support",
      mask: "view that supports the chosen box: what it removes, its box",
    },
    nameOf: (n) => detectorName(fabrication.label[n]),
    notProven: "this patch could have made this box",
    provenBy: "supported by",
    here: (unproven, count) =>
      unproven
        ? `This patch could have made ${unproven} of ${plural(count, "box", "boxes")}.`
        : `This patch made ${count === 1 ? "no box here: a view without it supports the box" : `none of the ${count} boxes: views without it support them`}.`,
    rows: ["largest square that cannot have made it, anywhere", "patch positions without support", "masks that support it"],
  },
};
let side = SIDES.hide;

// The verdict on an object or box for the chosen location: a word that also names its style.
function verdictIn({ certificates: by, verdicts: found, styles }, n) {
  if (by.ignore[n]) return "ignored";
  if (!found.known[n]) return "computing";
  const { certified, vacuous } = found[attack.location];
  return styles[vacuous[n] ? "vacuous" : certified[n] ? "certified" : "uncertified"];
}
const verdictOf = (n) => verdictIn(SIDES.hide, n);
const VERDICTS = {
  computing: { sign: "…", words: "computing" },
  certified: { sign: "✓", words: "certified" },
  uncertified: { sign: "✗", words: "not certified" },
  vacuous: { sign: "○", words: "vacuous: no such position" },
  ignored: { sign: "·", words: "ignored: not counted" },
  "not-fabricated": { sign: "■", words: "certified: no such patch made it" },
  "maybe-fabricated": { sign: "□", words: "not certified" },
  "no-position": { sign: "▫", words: "vacuous: no such position" },
};
// Another question has other signs: is an object proven at the one position where the patch is drawn?
const POSITION_SIGNS = {
  proven: { sign: "◆", words: "proven: guaranteed to be detected" },
  unproven: { sign: "◇", words: "not proven" },
  supported: { sign: "▲", words: "supported by a view without the patch" },
  unsupported: { sign: "△", words: "this patch could have made this box" },
};
const signOf = (style, words = "") =>
  make("span", { class: `mark ${style}` }, `${(VERDICTS[style] ?? POSITION_SIGNS[style]).sign} `, words);

// Objects have the dataset's class names, boxes the detector's. A name is written in its own direction, whatever
// surrounds it.
const detectorName = (label) => data.detector_names[label] ?? String(label);
const isolate = (name) => make("bdi", {}, name);

function boxOf(n, by = certificates) {
  return Array.from(by.box.subarray(4 * n, 4 * n + 4));
}
function drawBox([x1, y1, x2, y2], style) {
  return draw("rect", { x: x1, y: y1, width: Math.max(x2 - x1, 0), height: Math.max(y2 - y1, 0), class: style });
}
