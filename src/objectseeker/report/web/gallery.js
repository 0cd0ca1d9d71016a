// The images, filtered and ordered by their objects. Cards are made as the reader scrolls, thumbnails when a card comes
// into view.

const CARDS_AT_ONCE = 48;
const SQUARE_LIMITS = [0, 0.001, 0.01, 0.05, 0.25, Infinity]; // share of the image
const gallery = { images: [], matching: new Set(), shown: 0 };

const seen = new IntersectionObserver(
  (entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      seen.unobserve(entry.target);
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
    ["open", "✗ not certified"],
    ["found-open", "✗ found, but not certified"],
    ["vacuous", "○ vacuous (no such position)"],
  ]);
  options("filter-found", [
    ["", "found or not"],
    ["found", "found"],
    ["masking", "only masking found it"],
    ...(data.labeled ? [["missed", "not found"]] : []),
  ]);
  options("filter-slice", [["", "any slice"], ...slices.map((slice, at) => [at, slice.name])]);
  byId("slice-choice").hidden = !slices.length;
  options("filter-change", [
    ["", "changed or not"],
    ["gained", "gained"],
    ["lost", "lost"],
  ]);
  byId("change-choice").hidden = before === null;
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

// The smallest square that is not proven harmless, anywhere, as a share of the image.
function smallestSquare(n) {
  const { width, height } = certificates.masksOf[n];
  return (squares.side[n] + 1) ** 2 / (width * height);
}

// How images are ordered: by the least or the most of their matching objects; without objects they come last.
const ORDERS = {
  "": { words: "as in the run" },
  weakest: { words: "weakest object first", of: smallestSquare, choose: Math.min, sign: 1 },
  strongest: { words: "largest patch withstood first", of: smallestSquare, choose: Math.max, sign: -1 },
  score: { words: "highest score first", of: (n) => certificates.score[n], choose: Math.max, sign: -1 },
  unsure: { words: "lowest score first", of: (n) => certificates.score[n], choose: Math.min, sign: 1 },
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

const FOUND = {
  found: (n) => certificates.found[n] & 2,
  masking: (n) => certificates.found[n] === 2,
  missed: (n) => !(certificates.found[n] & 2),
};

// What each filter asks of an object, by the value that is chosen.
const FILTERS = {
  class: (n, value) => certificates.label[n] === +value,
  verdict: (n, value) => (value === "found-open" ? FOUND.found(n) && kindOf(n) === "open" : kindOf(n) === value),
  size: (n, value) => binOf(n) === +value,
  square: (n, value) =>
    smallestSquare(n) > SQUARE_LIMITS[+value] && smallestSquare(n) <= SQUARE_LIMITS[+value + 1],
  found: (n, value) => FOUND[value](n),
  slice: (n, value) => slices[+value].images.has(certificates.image[n]),
  change: (n, value) => changeOf(n, attack.where) === value,
};

function updateGallery() {
  const chosen = Object.entries(FILTERS)
    .map(([name, asks]) => [asks, byId(`filter-${name}`).value])
    .filter(([, value]) => value !== "");
  const everything = !chosen.length;
  gallery.matching = new Set(counted.filter((n) => chosen.every(([asks, value]) => asks(n, value))));
  const images = new Set(everything ? data.image_ids.keys() : [...gallery.matching].map((n) => certificates.image[n]));
  gallery.images = ordered([...images]);
  byId("found").textContent =
    `${countWords(gallery.matching.size)} in ${plural(gallery.images.length, "image")}` +
    (everything ? "" : ` of ${data.images}`);
  const before = Math.max(gallery.shown, CARDS_AT_ONCE);
  gallery.shown = 0;
  byId("cards-of-images").replaceChildren();
  if (!byId("part-images").hidden) showCards(before);
}

function showCards(until) {
  const next = gallery.images.slice(gallery.shown, until);
  gallery.shown += next.length;
  const cards = next.map(thumbnailCard);
  byId("cards-of-images").append(...cards);
  for (const card of cards) seen.observe(card);
  // Observed anew each time: the end may still be in view, and an observer only reports changes.
  reachedEnd.disconnect();
  if (gallery.shown < gallery.images.length) reachedEnd.observe(byId("more"));
}

function thumbnailCard(i) {
  const { width, height } = data.masks[data.image_masks[i]];
  const objects = objectsOf(i);
  const picture = draw(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    draw("image", { width, height, preserveAspectRatio: "none" }),
    ...objects.flatMap((n) => [
      drawBox(boxOf(n), "box-back"),
      drawBox(boxOf(n), `box ${kindOf(n)}${gallery.matching.has(n) ? "" : " faint"}`),
    ]),
  );
  const kinds = objects.map(kindOf).filter((kind) => kind !== "ignored");
  const held = kinds.filter((kind) => kind !== "open").length;
  const words = missing.has(i) ? "photograph missing" : "";
  return make(
    "a",
    { class: "thumbnail", href: `#image/${i}`, "data-image": i },
    picture,
    make(
      "span",
      { class: "words" },
      data.image_ids[i],
      ...otherName(i),
      make("br"),
      kinds.length
        ? make(
            "span",
            { class: `mark ${held === kinds.length ? "certified" : "open"}` },
            `${held === kinds.length ? "✓" : "✗"} ${held} of ${kinds.length} certified`,
          )
        : `no ${things}`,
      words ? make("span", { class: "soft" }, ` ${words}`) : "",
    ),
  );
}

// The file of an image whose id does not tell it.
function otherName(i) {
  const file = data.image_files[i];
  return file.includes(data.image_ids[i]) ? [] : [" ", make("span", { class: "soft" }, file)];
}

function objectsOf(i) {
  const first = certificates.object_first;
  return Array.from({ length: first[i + 1] - first[i] }, (_, k) => first[i] + k);
}

function loadThumbnail(card) {
  const i = +card.dataset.image;
  const address = photoAddress("thumbnail", i);
  if (address !== null) card.querySelector("image").setAttribute("href", address);
  else if (!missing.has(i)) whenRead(() => loadThumbnail(card));
}
