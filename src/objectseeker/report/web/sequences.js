// A sequence that plays: its frames on the stage, and below them one row per track. What the rows show was computed when
// the report was written (timelines.py), for one patch; what the patch on the frame could hide follows the sliders.

const { played } = data;
const STATES = [null, "alone", "held", "hidden"]; // as in timelines.py
const USUAL_FPS = 25; // where nobody says
const SETTLED = 300; // milliseconds until the address follows: browsers refuse one that changes all the time
const player = { sequence: -1, at: 0, row: -1, moves: 0, window: 0, since: null, settling: 0 };

const sequence = () => played.sequences[player.sequence];
const frameNumber = () => sequence().frames[player.at];
const span = ({ frames }) => frames[frames.length - 1] - frames[0] + 1;
const rowOf = (n) => (played === null ? -1 : certificates.track[n]);

// A name and, of a track, its number.
function nameOf(n) {
  const name = data.names[certificates.label[n]];
  const row = rowOf(n);
  return row < 0 ? name : `${name} ${sequenceOf(certificates.image[n]).tracks[row].track}`;
}

const sequenceByImage = new Map((played?.sequences ?? []).flatMap((one) => one.images.map((i) => [i, one])));
const sequenceOf = (i) => sequenceByImage.get(i);

const movesWords = (moves) => (moves === null ? "any distance" : moves === 0 ? "not at all" : `at most ${moves} pixels`);
const windowWords = (frames) => (frames === 1 ? "each frame alone" : `every ${frames} frames`);

function fillSequences() {
  for (const part of document.querySelectorAll(".of-sequences")) part.hidden = played === null;
  for (const words of document.querySelectorAll(".of-rolling")) words.hidden = !played?.rolling;
  const tracked = played?.sequences.some(({ tracks }) => tracks.length);
  for (const words of document.querySelectorAll(".of-tracks")) words.hidden = !tracked;
  if (played === null) return;
  const options = (id, choices, chosen) => {
    byId(id).replaceChildren(...choices.map((words, value) => make("option", { value }, words)));
    byId(id).value = chosen;
  };
  options("sequence", played.sequences.map(({ name }) => name), 0);
  options("moves", played.moves.map(movesWords), (player.moves = played.moves.length - 1));
  options("window", played.windows.map(windowWords), 0);
  byId("sequence").addEventListener("change", () => (location.hash = `sequences/${byId("sequence").value}`));
  for (const name of ["moves", "window"])
    byId(name).addEventListener("change", () => {
      player[name] = +byId(name).value;
      listTracks();
    });
  byId("play").addEventListener("click", togglePlay);
  byId("scrub").addEventListener("input", () => scrubTo(+byId("scrub").value));
  byId("rows-attack").textContent =
    `a patch of ${areaWords(played.area)} of the image (${aspectWords(played.aspect)}), anywhere, ` +
    `T = ${played.threshold}`;
}

function keyOf(state) {
  const frames = played.windows[player.window];
  const words = {
    alone: "surely found in this very frame",
    held: `surely found at least once in any ${frames} frames with this one`,
    hidden: frames === 1 ? "may be hidden" : "may be hidden, and may stay so",
  }[state];
  if (state === "held" && frames === 1) return [];
  const swatch = draw("svg", { class: "run-key", viewBox: "0 0 20 10", "aria-hidden": "true" }, drawRun(state, 0, 20));
  return [make("span", {}, swatch, words)];
}

// Told apart by height, too: what is certified stands higher.
const HEIGHTS = { alone: 8, held: 5.5, hidden: 3 };
function drawRun(state, first, length) {
  return draw("rect", { x: first, y: 8 - HEIGHTS[state], width: length, height: HEIGHTS[state], class: `run ${state}` });
}

function openSequence(number, frame, returned) {
  const k = Math.min(Math.max(parseInt(number, 10) || 0, 0), played.sequences.length - 1);
  const anew = k !== player.sequence;
  pause();
  if (anew) {
    Object.assign(player, { sequence: k, at: 0, row: -1 });
    byId("sequence").value = k;
    byId("sequence-title").replaceChildren(apart(sequence().name));
    byId("scrub").max = sequence().frames.length - 1;
  }
  const asked = parseInt(frame, 10);
  if (!Number.isNaN(asked)) player.at = nearest(asked);
  if (anew || returned) openImage(sequence().images[player.at], objectNow());
  if (player.row < 0 && view.object >= 0) player.row = rowOf(view.object);
  listTracks();
  showFrame();
}

// The object of the chosen track in this frame.
function objectNow() {
  const objects = objectsOf(sequence().images[player.at]);
  return player.row < 0 ? undefined : objects.find((n) => rowOf(n) === player.row);
}

// The last frame that is not after a number.
function nearest(number) {
  const { frames } = sequence();
  return Math.max(countBelow(frames, number + 1) - 1, 0);
}

// The patch and the zoom stay where they are; the chosen object is that of the chosen track.
function showFrame() {
  const i = sequence().images[player.at];
  setImage(i, objectNow() ?? -1);
  if (!sequence().one_size) view.zoom = { x: 0, y: 0, scale: 1 };
  applyZoom();
  loadPhoto();
  updatePhoto();
  const number = frameNumber();
  const { fps, frames } = sequence();
  byId("scrub").value = player.at;
  const time = fps === null ? "" : `, ${((number - frames[0]) / fps).toFixed(2)} s`;
  byId("frame-words").value = `frame ${number} of ${frames[0]} to ${frames[frames.length - 1]}${time}`;
  byId("scrub").setAttribute("aria-valuetext", byId("frame-words").value);
  byId("frame-link").href = view.object < 0 ? `#image/${i}` : `#${addressOf(view.object)}`;
  byId("tracks").style.setProperty("--now", (number - frames[0] + 0.5) / span(sequence()));
}

function scrubTo(at) {
  pause();
  player.at = Math.min(Math.max(at, 0), sequence().frames.length - 1);
  showFrame();
  clearTimeout(player.settling);
  player.settling = setTimeout(() => {
    if (byId("part-sequences").hidden) return;
    history.replaceState(null, "", `#sequences/${player.sequence}/${frameNumber()}`);
  }, SETTLED);
}

function togglePlay() {
  if (player.since !== null) {
    scrubTo(player.at); // the address leads here
    return;
  }
  if (player.at === sequence().frames.length - 1) player.at = 0;
  player.since = { time: performance.now(), number: frameNumber() };
  byId("play").textContent = "Pause";
  requestAnimationFrame(playOn);
}

function pause() {
  player.since = null;
  byId("play").textContent = "Play";
}

// The frame of this moment: one that takes too long to draw is left out, and time goes on.
function playOn(now) {
  if (player.since === null) return;
  if (byId("part-sequences").hidden) {
    pause();
    return;
  }
  const passed = Math.max(now - player.since.time, 0) / 1000;
  const at = nearest(player.since.number + Math.floor(passed * (sequence().fps ?? USUAL_FPS)));
  if (at !== player.at) {
    player.at = at;
    showFrame();
  }
  if (at === sequence().frames.length - 1) scrubTo(at);
  else requestAnimationFrame(playOn);
}

function listTracks() {
  byId("rows-key").replaceChildren(...["alone", "held", "hidden"].flatMap(keyOf));
  const { tracks, one_size: oneSize } = sequence();
  byId("tracks").replaceChildren(...tracks.map(trackRow));
  byId("tracks-words").textContent = !tracks.length
    ? "No object of this sequence has a track."
    : oneSize
      ? hardestWords(tracks)
      : "The frames have several sizes: nothing is said over time, as a patch moves in pixels of one size.";
  for (const words of ["rows-words", "rows-notes"]) byId(words).hidden = !tracks.length || !oneSize;
}

function chooseRow(row) {
  player.row = row;
  for (const track of byId("tracks").children)
    track.firstChild.setAttribute("aria-pressed", String(+track.dataset.row === row));
}

function hardestWords(tracks) {
  const way = (track) => track.ways[player.moves];
  const hardest = tracks.reduce((a, b) => (way(b).hidden > way(a).hidden ? b : a));
  if (!way(hardest).hidden) return `A patch of ${areaWords(played.area)} of the image hides no track in any frame.`;
  const { words } = way(hardest);
  const patch = `A patch of ${areaWords(played.area)} of the image`;
  if (tracks.length === 1) return `${patch} may keep its one track hidden for ${words}, and for no longer.`;
  const whose = `one of its ${tracks.length} tracks`;
  return `${patch} may keep ${whose} hidden for ${words} (track ${hardest.track}), and none for longer.`;
}

function trackRow(track, row) {
  const start = sequence().frames[0];
  const way = track.ways[player.moves];
  const runs = (way?.states[player.window] ?? []).map(([state, first, last]) =>
    drawRun(STATES[state], first - start, last - first + 1),
  );
  const name = `${data.names[track.label]} ${track.track}`;
  const hidden = way?.hidden ? `hidden at most ${way.words}` : way ? "never hidden" : "";
  if (way?.hidden) {
    const [first, last] = way.stretch;
    runs.push(draw("rect", { x: first - start, y: 8.5, width: last - first + 1, height: 1.5, class: "run longest" }));
  }
  const box = { viewBox: `0 0 ${span(sequence())} 10`, preserveAspectRatio: "none" };
  const bar = draw("svg", { ...box, role: "img", "aria-label": `${name}: ${hidden}` }, ...runs);
  const choose = () => {
    chooseRow(row);
    showFrame();
  };
  const jump = () => {
    chooseRow(row);
    scrubTo(nearest(way.stretch[0]));
  };
  return make(
    "div",
    { class: "track", "data-row": row },
    make("button", { type: "button", "aria-pressed": String(row === player.row), click: choose }, apart(name)),
    make("div", { class: "line", click: (event) => scrubTo(frameAt(event)) }, bar),
    way?.hidden
      ? make("button", { type: "button", class: "jump", title: "Go to the beginning of that time", click: jump }, hidden)
      : make("span", { class: "soft" }, hidden),
  );
}

// The frame under the pointer.
function frameAt({ currentTarget, clientX }) {
  const { left, width } = currentTarget.getBoundingClientRect();
  return nearest(sequence().frames[0] + Math.floor((span(sequence()) * (clientX - left)) / width));
}

// What the image by itself says of its sequence.
function describeFrame() {
  const mine = sequenceOf(view.image);
  byId("in-sequence").hidden = mine === undefined;
  if (mine === undefined) return;
  const number = mine.frames[mine.images.indexOf(view.image)];
  const link = { href: `#sequences/${played.sequences.indexOf(mine)}/${number}` };
  const share = played.rolling
    ? ` It shows only its share of the masks, one of ${played.rolling}: not certified here does not mean that an ` +
      "object can stay hidden."
    : "";
  byId("in-sequence").replaceChildren(
    make("a", link, `Frame ${number} of `, apart(mine.name)),
    `.${share}`,
  );
}
