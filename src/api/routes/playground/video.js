// The video in the browser: the player, and still pictures where the server sends none.

const player = {
  video: $("video"),
  /** What plays now: `{ end, button, mark }`, or `null` when the viewer plays the video themselves. */
  window: null,
  /** Told the current second. */
  followers: new Set(),

  load(address) {
    this.leave();
    $("unplayable").hidden = Boolean(address);
    if (address) this.video.src = address;
    else this.video.removeAttribute("src");
    this.video.load();
  },

  seek(seconds) {
    this.leave();
    this.video.currentTime = seconds;
  },

  /** Plays these seconds and stops. Asked for what plays already, stops it. */
  play(start, end, marks, button) {
    const again = this.window?.button === button;
    this.leave();
    this.video.pause();
    if (again) return;
    this.window = { start, end, marks, button };
    for (const mark of marks) mark.classList.add("playing");
    button.setAttribute("aria-pressed", "true");
    document.body.classList.add("watching-window");
    this.video.currentTime = start;
    this.video.play().catch(() => this.leave());
    announce(`Playing ${span(start, end)}`);
  },

  leave() {
    if (!this.window) return;
    for (const mark of this.window.marks) mark.classList.remove("playing");
    this.window.button.setAttribute("aria-pressed", "false");
    document.body.classList.remove("watching-window");
    this.window = null;
  },

  tell() {
    const { video, window } = this;
    if (window && video.currentTime >= window.end - 0.02) {
      video.pause();
      // The last frame that was asked for, not the first after it.
      video.currentTime = window.end;
      this.leave();
    }
    for (const follow of this.followers) follow(video.currentTime);
  },
};

{
  const { video } = player;
  const frame = () => {
    player.tell();
    if (!video.paused) requestAnimationFrame(frame);
  };
  video.addEventListener("play", () => requestAnimationFrame(frame));
  // `timeupdate` comes in hidden tabs too, where frames don't.
  for (const name of ["timeupdate", "seeked"]) video.addEventListener(name, () => player.tell());
  video.addEventListener("seeking", () => {
    const { window } = player;
    if (window && (video.currentTime < window.start - 1 || video.currentTime > window.end + 1)) player.leave();
  });
  video.addEventListener("loadedmetadata", () => pictures.shaped(video.videoWidth, video.videoHeight));
  video.addEventListener("error", () => { $("unplayable").hidden = !video.getAttribute("src"); });
}

/** Draws frames of the video one after another: pictures for servers that send none. */
const stills = {
  address: null,
  source: null,
  wanted: [],
  busy: false,

  load(address) {
    Object.assign(this, { address, source: null, wanted: [], busy: false });
  },

  /** A picture of that second, empty until it is drawn. */
  at(seconds) {
    const canvas = h("canvas", { class: "picture", width: 2, height: 2 });
    this.wanted.push({ seconds, canvas });
    this.work();
    return canvas;
  },

  async work() {
    if (this.busy || !this.address) return;
    this.busy = true;
    // Made when the first picture is wanted: a video on the web would come over the line twice for nothing.
    this.source ??= Object.assign(document.createElement("video"), { muted: true, preload: "auto", src: this.address });
    const { source } = this;
    try {
      if (source.readyState < HTMLMediaElement.HAVE_METADATA) await once(source, "loadedmetadata");
      while (this.source === source && this.wanted.length) {
        const { seconds, canvas } = this.wanted.shift();
        // A hair later: at a frame's very time some browsers show the one before.
        source.currentTime = Math.min(seconds + 0.01, source.duration || seconds);
        await once(source, "seeked");
        const scale = Math.min(1, 120 / (source.videoHeight || 120));
        canvas.width = Math.max(1, Math.round(source.videoWidth * scale));
        canvas.height = Math.max(1, Math.round(source.videoHeight * scale));
        canvas.getContext("2d").drawImage(source, 0, 0, canvas.width, canvas.height);
      }
    } catch {
      // What the browser can't show stays empty.
      if (this.source === source) this.wanted = [];
    }
    if (this.source === source) this.busy = false;
  },
};

function once(target, name) {
  return new Promise((resolve, reject) => {
    target.addEventListener(name, resolve, { once: true });
    target.addEventListener("error", reject, { once: true });
  });
}

/** The shape of the video's pictures: the same for all. */
const pictures = {
  aspect: 16 / 9,
  followers: new Set(),

  shaped(width, height) {
    const aspect = clamp(width / height || this.aspect, 0.3, 4);
    if (Math.abs(aspect - this.aspect) < 0.02) return;
    this.aspect = aspect;
    document.body.style.setProperty("--aspect", aspect.toFixed(3));
    for (const follow of this.followers) follow();
  },
};

/** The picture of a frame: the server's, else the browser's own. */
function picture(thumbnail, seconds) {
  const usable = typeof thumbnail === "string" && thumbnail.startsWith("data:image/");
  if (!usable) return stills.at(seconds);
  const shown = h("img", { class: "picture", alt: "", onload: () => pictures.shaped(shown.naturalWidth, shown.naturalHeight) });
  shown.src = thumbnail;
  return shown;
}
