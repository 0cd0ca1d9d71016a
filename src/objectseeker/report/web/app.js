// Connects the parts: the controls of the patch, which part is shown, the keyboard, and the functions that tests call.

const verdictWork = new Work();
const PARTS = ["overview", "images", "image", ...(data.playback ? ["sequences"] : []), "meaning"];
let galleryScroll = 0; // scroll position at which the reader left the images

function setAttack(change) {
  Object.assign(attack, change);
  showControls();
  for (const known of [verdicts, baselineVerdicts, SIDES.fabricate.verdicts].map((each) => each?.known)) known?.fill(0);
  if (stageIsShown()) {
    certifyShown();
    updateView();
  }
  certifyAll();
}

// The stage is part of the overview, of the image part and of its sequence.
const STAGES = ["overview", "image", "sequences"];
const stageIsShown = () => view.image >= 0 && STAGES.some((part) => !byId(`part-${part}`).hidden);

function showControls() {
  for (const [name, stops] of [
    ["area", areas],
    ["aspect", aspects],
    ["threshold", thresholds],
  ])
    byId(name).value = stops.indexOf(attack[name]);
  byId("area-words").value = areaWords(attack.area);
  byId("aspect-words").value = aspectWords(attack.aspect);
  byId("threshold-words").value = String(attack.threshold);
  byId("area").setAttribute("aria-valuetext", areaWords(attack.area) + " of the image");
  byId("aspect").setAttribute("aria-valuetext", aspectWords(attack.aspect));
  byId("threshold").setAttribute("aria-valuetext", String(attack.threshold));
  for (const choice of byId("location").querySelectorAll("input")) choice.checked = choice.value === attack.location;
  byId("attack-words").value = attackWords();
  byId("attack-meaning").textContent = meaningWords();
}

function certifyAll() {
  const next = emptyVerdicts(),
    nextBaseline = baseline && emptyVerdicts();
  document.body.classList.add("certifying");
  function* steps() {
    yield* certifyObjects({ ...attack }, everyObject, next);
    if (baseline) yield* certifyObjects({ ...attack }, everyObject, nextBaseline, baseline);
    yield* measureSquares(attack.threshold);
  }
  verdictWork.run(steps(), () => {
    verdicts = next;
    baselineVerdicts = nextBaseline;
    document.body.classList.remove("certifying");
    showVerdicts();
  });
}

function showVerdicts() {
  showRecalls();
  showSlices();
  showChanges();
  updateGallery();
  if (stageIsShown()) updateView();
  if (!byId("part-overview").hidden) updateChart();
}

function fillControls() {
  for (const [name, stops] of [
    ["area", areas],
    ["aspect", aspects],
    ["threshold", thresholds],
  ]) {
    byId(name).max = stops.length - 1;
    byId(name).addEventListener("input", () => setAttack({ [name]: stops[+byId(name).value] }));
  }
  byId("location").replaceChildren(
    ...locations.map((location) =>
      make(
        "label",
        {},
        make("input", { type: "radio", name: "location", value: location, change: () => setAttack({ location }) }),
        location,
      ),
    ),
  );
  byId("reset").addEventListener("click", () => setAttack(start));
  byId("theme").addEventListener("click", () => setTheme(byId("theme").textContent === "Dark"));
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
  if (matchMedia("(max-width: 40rem)").matches) byId("attack").open = false;
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").textContent = dark ? "Light" : "Dark";
}

function showPart() {
  const [requested, number, object] = location.hash.slice(1).split("/");
  const part = PARTS.includes(requested) ? requested : "overview";
  const shown = PARTS.find((name) => !byId(`part-${name}`).hidden);
  if (shown === "images") galleryScroll = scrollY;
  for (const name of PARTS) byId(`part-${name}`).hidden = name !== part;
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.hash === `#${part}` || (part === "image" && link.hash === "#images");
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (part === "overview") {
    byId("hero-stage").append(byId("stage"));
    setTimeout(() => showOverview(part !== shown || view.image < 0)); // later: first the page becomes usable
  }
  if (part === "images" && gallery.shown === 0) showCards(CARDS_AT_ONCE);
  if (part === "image") {
    byId("image-stage").append(byId("stage"));
    const image = Math.min(Math.max(parseInt(number, 10) || 0, 0), data.images - 1);
    const chosen = objectsOf(image)[parseInt(object, 10)];
    if (chosen !== undefined && side !== SIDES.hide) ask("hide"); // an address names an object
    if (part !== shown || image !== view.image) openImage(image, chosen);
    else if (chosen !== undefined && chosen !== view.object) chooseObject(chosen);
  }
  if (part === "sequences") {
    if (side !== SIDES.hide) ask("hide"); // tracks are those of objects
    byId("sequence-stage").append(byId("stage"));
    openSequence(number ?? player.sequence, object, part !== shown);
  }
  if (part !== shown) {
    byId(`part-${part}`).focus({ preventScroll: true });
    scrollTo(0, part === "images" ? galleryScroll : 0);
  }
}

function showOverview(entered) {
  if (byId("part-overview").hidden) return; // the reader has left it
  if (entered) openImage(data.cover);
  updateChart();
}

const STAGE_KEYS = {
  "+": () => zoomBy(2),
  "-": () => zoomBy(1 / 2),
  0: () => zoomTo(1, [0, 0]),
  w: toWorst,
  "[": () => stepObject(-1),
  "]": () => stepObject(1),
};
const KEYS = {
  image: {
    ...STAGE_KEYS,
    Escape: () => (location.hash = "images"),
    PageUp: () => step(-1),
    PageDown: () => step(1),
  },
  sequences: {
    ...STAGE_KEYS,
    " ": togglePlay,
    ArrowLeft: () => scrubTo(player.at - 1),
    ArrowRight: () => scrubTo(player.at + 1),
    PageUp: () => scrubTo(player.at - 10),
    PageDown: () => scrubTo(player.at + 10),
    Home: () => scrubTo(0),
    End: () => scrubTo(Infinity),
  },
};

function onKey(event) {
  const part = Object.keys(KEYS).find((name) => !byId(`part-${name}`).hidden);
  if (part === undefined || event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return;
  const action = KEYS[part][event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (action === undefined || event.target.matches("select, input[type=text]")) return;
  if (part === "sequences" && event.key === " " && event.target.matches("button, a, summary")) return;
  if (part === "sequences" && event.target.closest("#attack")) return; // its sliders use the arrow keys
  action();
  event.preventDefault();
}

fillControls();
fillOverview();
setTimeout(fillFilters); // on another part; sorting names takes a while
fillQuestion();
fillStage();
fillSaving();
fillSequences();
showControls();
showPart();
certifyAll();
addEventListener("hashchange", showPart);
addEventListener("keydown", onKey);
addEventListener("resize", () => {
  if (!byId("part-overview").hidden) drawChart();
  if (stageIsShown()) updateView();
});

// The functions behind the page, for tests and for anyone who wants to check: the same ones that the page uses.
window.objectseeker = {
  data,
  certificates,
  attack,
  view,
  percent,
  verdictOf,
  fabrication,
  baseline,
  listAsCsv,
  imagePng,
  escapeCsvCell,
  jointCertificate(i, area, aspect, threshold) {
    const { width, height } = data.masks[data.image_masks[i]];
    const objects = objectsOf(i).filter((n) => !certificates.ignore[n]);
    return jointCertificate(certificates, objects, patchSize(area, aspect, width, height), threshold);
  },
  verdicts(area, aspect, location, threshold, by = certificates) {
    const sizes = Array.from({ length: by.count }, (_, n) => by.sizeFor(n, { area, aspect }));
    return {
      certified: sizes.map((size, n) => by.certified(n, location, size, threshold)),
      vacuous: sizes.map((size, n) => by.vacuous(n, location, size)),
    };
  },
  interactive: performance.now(),
};
