// What every part of the page uses: the data, the state, the verdicts at the chosen attack, and how elements are made.

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const certificates = new Certificates(data, (name) => byId(`column-${name}`).textContent);
const { areas, aspects, thresholds, wheres, start, size_bins: sizeBins } = data.controls;
const attack = { ...start };

const SVG = byId("photo").namespaceURI;

// Text always goes in as text: no name of a class or a file can become markup.
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
// can lie halfway, and scaling by that power is exact.
function percent(value, digits = 1) {
  if (!Number.isFinite(value)) return "–";
  const up = value.toFixed(digits);
  const tie = (Math.abs(value) * 2 ** (digits + 1)) % 2 === 1;
  return tie && up.at(-1) % 2 === 1 ? (value - 0.25 / 10 ** digits).toFixed(digits) : up;
}
const plural = (count, word, words = word + "s") => `${count.toLocaleString("en")} ${count === 1 ? word : words}`;
// Without labels the objects are the boxes that the defended detector outputs, and are called so.
const [thing, things] = data.labeled ? ["object", "objects"] : ["box", "boxes"];
const countWords = (count) => plural(count, thing, things);
const areaWords = (area) => `${+(100 * area).toPrecision(3)} %`;
function aspectWords(aspect) {
  if (aspect === 1) return "square";
  return aspect > 1 ? `${+aspect.toPrecision(3)} : 1, wide` : `1 : ${+(1 / aspect).toPrecision(3)}, tall`;
}
const WHERE_WORDS = {
  far: "the patch is more than 10 % of the image away from the object",
  close: "the patch lies beside the object, at most 10 % of the image away",
  over: "the patch overlaps the object",
  anywhere: "the patch may lie at any place",
};
// What the chosen words and T mean, where they are chosen.
function meaningWords() {
  const share = `${+(100 * attack.threshold).toPrecision(3)} %`;
  const asked = data.by_iou
    ? `an IoU above ${attack.threshold} with the object`
    : attack.threshold === 0
      ? "something of the object in it, however little"
      : `more than ${share} of the object in it`;
  const place = `${capital(attack.where)}: ${WHERE_WORDS[attack.where]}.`;
  return `${place} T = ${attack.threshold}: the box that is still found has ${asked}.`;
}
const attackWords = () =>
  `${areaWords(attack.area)} of the image, ${aspectWords(attack.aspect)}, ${attack.where}, T = ${attack.threshold}`;

// Photographs and details lie behind the script: the page works before they are read. null: there is none (yet).
function stored(id) {
  const found = byId(id);
  return found === null ? null : found.textContent;
}
const missing = new Set(data.image_missing);
function photoAddress(kind, i) {
  if (missing.has(i)) return null;
  if (data.photos !== null) return `${data.photos}/${kind}-${i}.jpg`;
  const content = stored(`${kind}-${i}`);
  return content === null ? null : "data:image/jpeg;base64," + content;
}
function whenRead(action) {
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", action, { once: true });
  else action();
}

// Long work in short slices: the page stays alive, and new work of the same kind replaces the old.
const SLICE = 12; // milliseconds
class Work {
  run(steps, done) {
    const mine = (this.current = {});
    const go = () => {
      if (this.current !== mine) return;
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

// The verdicts of some objects at one patch and T, where by where.
const everyObject = Array.from({ length: certificates.count }, (_, n) => n);
function* judge({ area, aspect, threshold }, objects, verdicts, by = certificates) {
  for (const n of objects) {
    const size = by.sizeFor(n, { area, aspect });
    for (const where of wheres) {
      verdicts[where].certified[n] = by.certified(n, where, size, threshold);
      verdicts[where].vacuous[n] = by.vacuous(n, where, size);
    }
    yield;
  }
}
function emptyVerdicts() {
  const flags = () => new Uint8Array(certificates.count);
  return Object.fromEntries(wheres.map((where) => [where, { certified: flags(), vacuous: flags() }]));
}
const counted = everyObject.filter((n) => !certificates.ignore[n]);
let verdicts = emptyVerdicts(); // at the chosen attack

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

// The kind of an object's verdict at the chosen attack: the word that also names its style.
function kindOf(n) {
  if (certificates.ignore[n]) return "ignored";
  const { certified, vacuous } = verdicts[attack.where];
  return vacuous[n] ? "vacuous" : certified[n] ? "certified" : "open";
}
const KINDS = {
  certified: { symbol: "✓", words: "certified" },
  open: { symbol: "✗", words: "not certified" },
  vacuous: { symbol: "○", words: "vacuous, there is no such position" },
  ignored: { symbol: "·", words: "ignored, counts neither way" },
};

// Objects have the dataset's class names, boxes the detector's. A name is written in its own direction, whatever
// stands around it.
const detectorName = (label) => data.detector_names[label] ?? String(label);
const apart = (name) => make("bdi", {}, name);

function boxOf(n) {
  return Array.from(certificates.box.subarray(4 * n, 4 * n + 4));
}
function drawBox([x1, y1, x2, y2], style) {
  return draw("rect", { x: x1, y: y1, width: Math.max(x2 - x1, 0), height: Math.max(y2 - y1, 0), class: style });
}
