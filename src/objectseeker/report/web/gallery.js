// The images, filtered and ordered by their objects. Cards are made as the reader scrolls, thumbnails when a card comes
// into view.

const CARDS_AT_ONCE = 48;
const SQUARE_LIMITS = [0, 0.001, 0.01, 0.05, 0.25, Infinity]; // share of the image
const gallery = { images: [], matching: new Set(), shown: 0 };

const inView = new IntersectionObserver(
  (entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      inView.unobserve(entry.target);
      loadThumbnail(entry.target);
    }
  },
  { rootMargin: "400px" },
);
const reachedEnd = new IntersectionObserver(
  (entries) => {
    if (entries.some((entry) => entry.isIntersecting)) showCards(gallery.shown + CARDS_AT_ONCE);
  },
  { rootMargin: "800px" },
);

function fillFilters() {
  const options = (id, choices) =>
    byId(id).replaceChildren(...choices.map(([value, words]) => make("option", { value }, words)));
  const classes = data.per_class
    .map(({ label }) => [label, data.names[label]])
    .sort((a, b) => a[1].localeCompare(b[1]));
  options("filter-class", [["", "any class"], ...classes]);
  options("filter-verdict", [
    ["", "certified or not"],
    ["certified", "✓ certified"],
    ["uncertified", "✗ not certified"],
    ["found-uncertified", "✗ detected, but not certified"],
    ["vacuous", "○ vacuous (no such position)"],
  ]);
  options("filter-found", [
    ["", "detected or not"],
    ["detected", "detected"],
    ["recovered", "recovered by masking"],
    ...(data.labeled ? [["missed", "not detected"]] : []),
  ]);
  options("filter-slice", [["", "any slice"], ...slices.map((slice, at) => [at, slice.name])]);
  byId("slice-choice").hidden = !slices.length;
  options("filter-change", [
    ["", "changed or not"],
    ["gained", "gained"],
    ["lost", "lost"],
  ]);
  byId("change-choice").hidden = baseline === null;
  options(
    "order",
    Object.entries(ORDERS).map(([name, { words }]) => [name, words]),
  );
  options("filter-size", [
    ["", "any size"],
    ...sizeBins.slice(1).map((_, bin) => [bin, sizeWords(bin) + " of the image"]),
  ]);
  options("filter-square", [
    ["", "any"],
    ...SQUARE_LIMITS.slice(1).map((high, i) => [i, squareWords(SQUARE_LIMITS[i], high)]),
  ]);
  byId("filters").addEventListener("change", updateGallery);
  byId("filters").addEventListener("reset", () => setTimeout(updateGallery));
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
}

function squareWords(low, high) {
  if (low === 0) return `up to ${areaWords(high)} of the image`;
  return Number.isFinite(high) ? `${areaWords(low)} to ${areaWords(high)}` : `more than ${areaWords(low)}`;
}

// The area of the smallest square that is not certified anywhere, as a share of the image.
function smallestSquare(n) {
  const { width, height } = certificates.masksOf[n];
  return (squares.side[n] + 1) ** 2 / (width * height);
}

// How images are ordered: by the minimum or maximum over their matching objects; images without such objects come last.
const ORDERS = {
  "": { words: "as in the run" },
  smallest: { words: "smallest certified square first", of: smallestSquare, choose: Math.min, sign: 1 },
  largest: { words: "largest certified square first", of: smallestSquare, choose: Math.max, sign: -1 },
  score: { words: "highest score first", of: (n) => certificates.score[n], choose: Math.max, sign: -1 },
  lowest: { words: "lowest score first", of: (n) => certificates.score[n], choose: Math.min, sign: 1 },
};

function ordered(images) {
  const { of, choose, sign } = ORDERS[byId("order").value];
  if (of === undefined) return images.sort((a, b) => a - b);
  const key = new Map(
    images.map((i) => {
      const values = objectsOf(i).filter((n) => gallery.matching.has(n)).map(of);
      return [i, values.length ? sign * choose(...values) : Infinity];
    }),
  );
  return images.sort((a, b) => (key.get(a) === key.get(b) ? a - b : key.get(a) - key.get(b)));
}

const DETECTED = {
  detected: (n) => certificates.found[n] & 2,
  recovered: (n) => certificates.found[n] === 2,
  missed: (n) => !(certificates.found[n] & 2),
};

// Whether an object passes each filter, by the value that is chosen.
const FILTERS = {
  class: (n, value) => certificates.label[n] === +value,
  verdict: (n, value) => 
    value === "found-uncertified"
      ? DETECTED.detected(n) && verdictOf(n) === "uncertified"
      : verdictOf(n) === value,
  size: (n, value) => binOf(n) === +value,
  square: (n, value) =>
    smallestSquare(n) > SQUARE_LIMITS[+value] && smallestSquare(n) <= SQUARE_LIMITS[+value + 1],
  found: (n, value) => DETECTED[value](n),
  slice: (n, value) => slices[+value].images.has(certificates.image[n]),
  change: (n, value) => changeOf(n, attack.location) === value,
};

function updateGallery() {
  const chosen = Object.entries(FILTERS)
    .map(([name, passes]) => [passes, byId(`filter-${name}`).value])
    .filter(([, value]) => value !== "");
  const everything = !chosen.length;
  gallery.matching = new Set(counted.filter((n) => chosen.every(([passes, value]) => passes(n, value))));
  const images = new Set(everything ? data.image_ids.keys() : [...gallery.matching].map((n) => certificates.image[n]));
  gallery.images = ordered([...images]);
  byId("gallery-count").textContent =
    `${countWords(gallery.matching.size)} in ${plural(gallery.images.length, "image")}` +
    (everything ? "" : ` of ${data.images}`);
  const until = Math.max(gallery.shown, CARDS_AT_ONCE);
  gallery.shown = 0;
  byId("cards-of-images").replaceChildren();
  if (!byId("part-images").hidden) showCards(until);
}

function showCards(until) {
  const next = gallery.images.slice(gallery.shown, until);
  gallery.shown += next.length;
  const cards = next.map(thumbnailCard);
  byId("cards-of-images").append(...cards);
  for (const card of cards) inView.observe(card);
  // Observed again each time: the end may still be in view, and an observer only reports changes.
  reachedEnd.disconnect();
  if (gallery.shown < gallery.images.length) reachedEnd.observe(byId("more"));
}

function thumbnailCard(i) {
  const { width, height } = data.masks[data.image_masks[i]];
  const objects = objectsOf(i);
  const annotated = draw(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    draw("image", { width, height, preserveAspectRatio: "none" }),
    ...objects.flatMap((n) => [
      drawBox(boxOf(n), "box-back"),
      drawBox(boxOf(n), `box ${verdictOf(n)}${gallery.matching.has(n) ? "" : " faint"}`),
    ]),
  );
  const kinds = objects.map(verdictOf).filter((kind) => kind !== "ignored");
  const known = !kinds.includes("computing");
  const held = kinds.filter((kind) => kind !== "uncertified").length;
  const mark = !known ? "computing" : held === kinds.length ? "certified" : "uncertified";
  const words = missing.has(i) ? "image missing" : "";
  return make(
    "a",
    { class: "thumbnail", href: `#image/${i}`, "data-image": i },
    annotated,
    make(
      "span",
      { class: "words" },
      data.image_ids[i],
      ...otherName(i),
      make("br"),
      kinds.length
        ? signOf(mark, known ? `${held} of ${kinds.length} certified` : "computing")
        : `no ${things}`,
      words ? make("span", { class: "soft" }, ` ${words}`) : "",
    ),
  );
}

// The file of an image, unless its id names it.
function otherName(i) {
  const file = data.image_files[i];
  return file.includes(data.image_ids[i]) ? [] : [" ", make("span", { class: "soft" }, file)];
}

function objectsOf(i, by = certificates) {
  const first = by.object_first;
  return Array.from({ length: first[i + 1] - first[i] }, (_, k) => first[i] + k);
}

function loadThumbnail(card) {
  const i = +card.dataset.image;
  const address = imageAddress("thumbnail", i);
  if (address !== null) card.querySelector("image").setAttribute("href", address);
  else if (!missing.has(i)) whenRead(() => loadThumbnail(card));
}
