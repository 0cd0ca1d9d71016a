// Puts the parts together: the attack's controls, which part is shown, the keyboard, and what tests may ask.

const verdictWork = new Work();
const PARTS = ["overview", "images", "image", "meaning"];
let galleryScroll = 0; // where the reader left the images

function setAttack(change) {
  Object.assign(attack, change);
  showControls();
  if (!byId("part-image").hidden) {
    for (const _ of judge(attack, objectsOf(view.image), verdicts)); // what the reader looks at comes first
    updatePhoto();
  }
  judgeAll();
}

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
  for (const choice of byId("where").querySelectorAll("input")) choice.checked = choice.value === attack.where;
  byId("attack-words").value = attackWords();
}

function judgeAll() {
  const next = emptyVerdicts();
  document.body.classList.add("judging");
  function* steps() {
    yield* judge({ ...attack }, everyObject, next);
    yield* measureSquares(attack.threshold);
  }
  verdictWork.run(steps(), () => {
    verdicts = next;
    document.body.classList.remove("judging");
    showVerdicts();
  });
}

function showVerdicts() {
  showRecalls();
  updateGallery();
  if (!byId("part-image").hidden) updatePhoto();
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
  byId("where").replaceChildren(
    ...wheres.map((where) =>
      make(
        "label",
        {},
        make("input", { type: "radio", name: "where", value: where, change: () => setAttack({ where }) }),
        where,
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
  const [asked, number] = location.hash.slice(1).split("/");
  const part = PARTS.includes(asked) ? asked : "overview";
  const before = PARTS.find((name) => !byId(`part-${name}`).hidden);
  if (before === "images") galleryScroll = scrollY;
  for (const name of PARTS) byId(`part-${name}`).hidden = name !== part;
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.hash === `#${part}` || (part === "image" && link.hash === "#images");
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (part === "overview") updateChart();
  if (part === "images" && gallery.shown === 0) showCards(CARDS_AT_ONCE);
  const image = Math.min(Math.max(parseInt(number, 10) || 0, 0), data.images - 1);
  if (part === "image" && (part !== before || image !== view.image)) openImage(image);
  if (part !== before) {
    byId(`part-${part}`).focus({ preventScroll: true });
    scrollTo(0, part === "images" ? galleryScroll : 0);
  }
}

function onKey(event) {
  if (byId("part-image").hidden || event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.key === "Escape") location.hash = "images";
  else if (event.key === "PageUp") step(-1);
  else if (event.key === "PageDown") step(1);
  else return;
  event.preventDefault();
}

fillControls();
fillOverview();
fillFilters();
fillPhoto();
showControls();
showPart();
judgeAll();
addEventListener("hashchange", showPart);
addEventListener("keydown", onKey);
addEventListener("resize", () => {
  if (!byId("part-overview").hidden) drawChart();
});

// The functions behind the page, for tests and for the curious: the same ones that the page uses.
window.objectseeker = {
  data,
  certificates,
  attack,
  view,
  percent,
  verdicts(area, aspect, where, threshold) {
    const sizes = Array.from({ length: certificates.count }, (_, n) => certificates.sizeFor(n, { area, aspect }));
    return {
      certified: sizes.map((size, n) => certificates.certified(n, where, size, threshold)),
      vacuous: sizes.map((size, n) => certificates.vacuous(n, where, size)),
    };
  },
  interactive: performance.now(),
};
