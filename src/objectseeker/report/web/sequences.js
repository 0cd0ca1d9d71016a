// A sequence that plays: its frames on the stage, and below them one row per track. The rows were computed when the report
// was written (certificates.py), for one patch; boxes and patch on the frame follow the sliders.

const { playback } = data;
const STATES = [null, "frame", "window", "uncertified"]; // as in certificates.py
const DEFAULT_FPS = 25; // if the sequence has none
const ADDRESS_DELAY = 300; // milliseconds until the address follows: browsers reject one that changes all the time
const player = { sequence: -1, at: 0, row: -1, maxMotion: 0, window: 0, since: null, addressTimer: 0 };

const sequence = () => playback.sequences[player.sequence];
const frameNumber = () => sequence().frames[player.at];
const span = ({ frames }) => frames[frames.length - 1] - frames[0] + 1;
const rowOf = (n) => (playback === null ? -1 : certificates.track[n]);

// The name of an object, with the number of its track.
function nameOf(n) {
  const name = data.names[certificates.label[n]];
  const row = rowOf(n);
  return row < 0 ? name : `${name} ${sequenceOf(certificates.image[n]).tracks[row].track}`;
}

const sequenceByImage = new Map((playback?.sequences ?? []).flatMap((one) => one.images.map((i) => [i, one])));
const sequenceOf = (i) => sequenceByImage.get(i);

const motionWords = (pixels) => (pixels === null ? "any distance" : pixels === 0 ? "none" : `at most ${pixels} pixels`);
const windowWords = (frames) => (frames === 1 ? "every frame" : `at least one of any ${frames} consecutive frames`);

function fillSequences() {
  for (const part of document.querySelectorAll(".if-sequences")) part.hidden = playback === null;
  for (const words of document.querySelectorAll(".if-rolling")) words.hidden = !playback?.rolling;
  const tracked = playback?.sequences.some(({ tracks }) => tracks.length);
  for (const words of document.querySelectorAll(".if-tracks")) words.hidden = !tracked;
  if (playback === null) return;
  const options = (id, choices, chosen) => {
    byId(id).replaceChildren(...choices.map((words, value) => make("option", { value }, words)));
    byId(id).value = chosen;
  };
  options("sequence", playback.sequences.map(({ name }) => name), 0);
  options("max-motion", playback.max_motions.map(motionWords), (player.maxMotion = playback.max_motions.length - 1));
  options("window", playback.windows.map(windowWords), 0);
  byId("sequence").addEventListener("change", () => (location.hash = `sequences/${byId("sequence").value}`));
  for (const [id, name] of [
    ["max-motion", "maxMotion"],
    ["window", "window"],
  ])
    byId(id).addEventListener("change", () => {
      player[name] = +byId(id).value;
      listTracks();
    });
  byId("play").addEventListener("click", togglePlay);
  byId("scrub").addEventListener("input", () => scrubTo(+byId("scrub").value));
  byId("tracks-patch").textContent =
    `a patch of ${areaWords(playback.area)} of the image (${aspectWords(playback.aspect)}), anywhere, ` +
    `T = ${playback.certification_threshold}`;
}

function legendEntry(state) {
  const frames = playback.windows[player.window];
  const words = {
    frame: "certified in this frame",
    window: `certified: detected in at least one of any ${frames} consecutive frames with this one`,
    uncertified: "not certified",
  }[state];
  if (state === "window" && frames === 1) return [];
  const swatch = draw("svg", { class: "run-key", viewBox: "0 0 20 10", "aria-hidden": "true" }, drawRun(state, 0, 20));
  return [make("span", {}, swatch, words)];
}

// Height tells states apart, too: certified runs are higher.
const HEIGHTS = { frame: 8, window: 5.5, uncertified: 3 };
function drawRun(state, first, length) {
  return draw("rect", { x: first, y: 8 - HEIGHTS[state], width: length, height: HEIGHTS[state], class: `run ${state}` });
}

function openSequence(number, frame, returned) {
  const k = Math.min(Math.max(parseInt(number, 10) || 0, 0), playback.sequences.length - 1);
  const anew = k !== player.sequence;
  pause();
  if (anew) {
    Object.assign(player, { sequence: k, at: 0, row: -1 });
    byId("sequence").value = k;
    byId("sequence-title").replaceChildren(isolate(sequence().name));
    byId("scrub").max = sequence().frames.length - 1;
  }
  const requested = parseInt(frame, 10);
  if (!Number.isNaN(requested)) player.at = nearest(requested);
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

// Patch and zoom stay; the chosen object is that of the chosen track.
function showFrame() {
  const i = sequence().images[player.at];
  setImage(i, objectNow() ?? -1);
  if (!sequence().one_size) view.zoom = { x: 0, y: 0, scale: 1 };
  applyZoom();
  loadImage();
  updateView();
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
  clearTimeout(player.addressTimer);
  player.addressTimer = setTimeout(() => {
    if (byId("part-sequences").hidden) return;
    history.replaceState(null, "", `#sequences/${player.sequence}/${frameNumber()}`);
  }, ADDRESS_DELAY);
}

function togglePlay() {
  if (player.since !== null) {
    scrubTo(player.at); // the address then links to this frame
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

// The frame of this moment: frames that take too long to draw are skipped.
function playOn(now) {
  if (player.since === null) return;
  if (byId("part-sequences").hidden) {
    pause();
    return;
  }
  const passed = Math.max(now - player.since.time, 0) / 1000;
  const at = nearest(player.since.number + Math.floor(passed * (sequence().fps ?? DEFAULT_FPS)));
  if (at !== player.at) {
    player.at = at;
    showFrame();
  }
  if (at === sequence().frames.length - 1) scrubTo(at);
  else requestAnimationFrame(playOn);
}

function listTracks() {
  byId("tracks-legend").replaceChildren(...STATES.slice(1).flatMap(legendEntry));
  const { tracks, one_size: oneSize } = sequence();
  byId("tracks").replaceChildren(...tracks.map(trackRow));
  byId("tracks-words").textContent = !tracks.length
    ? "No object of this sequence has a track."
    : oneSize
      ? longestWords(tracks)
      : "The frames have several sizes: there are no certificates over time, because patch motion is in pixels of one size.";
  for (const words of ["tracks-controls", "tracks-note"]) byId(words).hidden = !tracks.length || !oneSize;
}

function chooseRow(row) {
  player.row = row;
  for (const track of byId("tracks").children)
    track.firstChild.setAttribute("aria-pressed", String(+track.dataset.row === row));
}

function longestWords(tracks) {
  const motion = (track) => track.motions[player.maxMotion];
  const longest = tracks.reduce((a, b) => (motion(b).uncertified > motion(a).uncertified ? b : a));
  const { uncertified, duration } = motion(longest);
  const patch = `under a patch of ${areaWords(playback.area)} of the image`;
  if (!uncertified) return `Every track is certified in every frame ${patch}.`;
  return (
    `Longest uncertified time ${patch}: ${duration} (track ${longest.track}). No ` +
    `${tracks.length === 1 ? "attack can hide the track" : `attack can hide any of the ${tracks.length} tracks`} for longer.`
  );
}

function trackRow(track, row) {
  const start = sequence().frames[0];
  const motion = track.motions[player.maxMotion];
  const runs = (motion?.states[player.window] ?? []).map(([state, first, last]) =>
    drawRun(STATES[state], first - start, last - first + 1),
  );
  const name = `${data.names[track.label]} ${track.track}`;
  const words = motion?.uncertified ? `uncertified at most ${motion.duration}` : motion ? "always certified" : "";
  if (motion?.uncertified) {
    const [first, last] = motion.longest;
    runs.push(draw("rect", { x: first - start, y: 8.5, width: last - first + 1, height: 1.5, class: "run longest" }));
  }
  const box = { viewBox: `0 0 ${span(sequence())} 10`, preserveAspectRatio: "none" };
  const bar = draw("svg", { ...box, role: "img", "aria-label": `${name}: ${words}` }, ...runs);
  const choose = () => {
    chooseRow(row);
    showFrame();
  };
  const jump = () => {
    chooseRow(row);
    scrubTo(nearest(motion.longest[0]));
  };
  return make(
    "div",
    { class: "track", "data-row": row },
    make("button", { type: "button", "aria-pressed": String(row === player.row), click: choose }, isolate(name)),
    make("div", { class: "line", click: (event) => scrubTo(frameAt(event)) }, bar),
    motion?.uncertified
      ? make("button", { type: "button", class: "jump", title: "Go to the beginning of that time", click: jump }, words)
      : make("span", { class: "soft" }, words),
  );
}

// The frame under the pointer.
function frameAt({ currentTarget, clientX }) {
  const { left, width } = currentTarget.getBoundingClientRect();
  return nearest(sequence().frames[0] + Math.floor((span(sequence()) * (clientX - left)) / width));
}

// What the image part says of the sequence of its frame.
function describeFrame() {
  const own = sequenceOf(view.image);
  byId("in-sequence").hidden = own === undefined;
  if (own === undefined) return;
  const number = own.frames[own.images.indexOf(view.image)];
  const link = { href: `#sequences/${playback.sequences.indexOf(own)}/${number}` };
  const share = playback.rolling
    ? ` It has only its share of the masks, one of ${playback.rolling}: not certified here does not mean that an ` +
      "object can stay hidden."
    : "";
  byId("in-sequence").replaceChildren(
    make("a", link, `Frame ${number} of `, isolate(own.name)),
    `.${share}`,
  );
}
