// The video's timeline: overview frames at their times, and below them the windows, each on a lane of its own.

/** Least share of a picture that a cell of the strip shows. */
const LEAST_SHOWN = 0.75;

class Timeline {
  constructor() {
    this.from = 0;
    this.to = 0;
    this.lanes = new Map();
    this.turns = new Map();
    this.strip = h("div", { class: "strip", role: "toolbar", "aria-label": "Overview frames" });
    this.dots = h("div", { class: "dots", "aria-hidden": "true" });
    this.ruler = h("div", { class: "ruler", "aria-hidden": "true" });
    this.list = h("div", { class: "lanes" });
    this.now = h("div", { class: "now", hidden: true });
    this.about = h("span");
    this.axis = h("div", { class: "axis" }, this.strip, this.dots, this.ruler, this.list, this.now);
    this.root = h("section", { class: "timeline", "aria-label": "Timeline", hidden: true },
      h("h3", { class: "panel-title" }, "Timeline", this.about), this.axis);
    this.strip.addEventListener("keydown", (event) => this.rove(event));
    player.followers.add((seconds) => this.follow(seconds));
  }

  /** The overview is there: `record` is the event's. */
  overview(record, from, to) {
    this.from = Math.min(from ?? 0, record.frame_times[0] ?? 0);
    this.to = Math.max(to ?? record.duration, record.frame_times.at(-1) ?? 0, this.from + 0.001);
    this.frames = record.frame_times.map((seconds, place) => ({ seconds, thumbnail: record.thumbnails?.[place] }));
    const kind = record.keyframes ? "key frames" : "frames";
    const facts = [`${this.frames.length} overview ${kind}`, ...(record.treatment ?? [])];
    if (record.partial) facts.push("part of the file is missing");
    this.about.textContent = facts.join(" · ");
    this.root.hidden = false;
    this.dots.replaceChildren(...this.frames.map(({ seconds }) => h("i", { css: { left: percent(this.share(seconds)) } })));
    this.drawRuler();
    new ResizeObserver(() => this.drawStrip()).observe(this.strip);
    pictures.followers.add(() => this.drawStrip());
    this.drawStrip();
  }

  share(seconds) {
    return clamp((seconds - this.from) / (this.to - this.from), 0, 1);
  }

  /** As many frames as fit, each from midway to its neighbours. */
  drawStrip() {
    const { clientWidth: width, clientHeight: height } = this.strip;
    const least = Math.max(28, LEAST_SHOWN * height * pictures.aspect);
    const stride = Math.max(1, Math.ceil((least * this.frames.length) / (width || 600)));
    if (stride === this.stride) return;
    this.stride = stride;
    const shown = this.frames.filter((_, place) => place % stride === 0);
    const cells = shown.map((frame, place) => {
      const edge = (other) => (other ? this.share((frame.seconds + other.seconds) / 2) : null);
      const left = edge(shown[place - 1]) ?? 0;
      const right = edge(shown[place + 1]) ?? 1;
      frame.picture ??= picture(frame.thumbnail, frame.seconds);
      const at = clock(frame.seconds, true);
      return h("button", {
        type: "button", title: at, "aria-label": `Frame at ${at}`, tabindex: place === 0 ? "0" : "-1",
        css: { left: percent(left), width: `calc(${percent(right - left)} - 1px)` }, onclick: () => player.seek(frame.seconds),
      }, frame.picture);
    });
    this.strip.replaceChildren(...cells);
  }

  rove(event) {
    const cells = [...this.strip.children];
    const here = cells.indexOf(document.activeElement);
    const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: cells.length - 1 }[event.key];
    if (to === undefined || !cells[to]) return;
    event.preventDefault();
    cells[here].tabIndex = -1;
    cells[to].tabIndex = 0;
    cells[to].focus();
  }

  drawRuler() {
    const length = this.to - this.from;
    const steps = [0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200];
    const step = steps.find((size) => length / size <= 6) ?? 14_400;
    const marks = [this.from];
    for (let mark = Math.ceil(this.from / step + 0.4) * step; mark < this.to - step * 0.6; mark += step) marks.push(mark);
    marks.push(this.to);
    this.ruler.replaceChildren(...marks.map((seconds, place) => h("span", {
      class: place === 0 ? "first" : place === marks.length - 1 ? "last" : null, css: { left: percent(this.share(seconds)) },
    }, clock(seconds, step < 1))));
  }

  /** Shows a window as it is now, with the marks that light up while it plays. */
  window(window, play) {
    let lane = this.lanes.get(window.id);
    if (!lane) {
      lane = this.open(window);
      this.lanes.set(window.id, lane);
    }
    const { bar, said } = lane;
    if (window.start !== null && !bar.isConnected) this.place(lane, window, play);
    bar.dataset.state = window.state;
    bar.setAttribute("aria-label", `Window ${window.id + 1}, ${describe(window)}. Play`);
    if (bar.childElementCount === 1 && window.frames.length && window.end > window.start) {
      bar.append(...window.frames.map((seconds) => h("i", {
        css: { left: percent(clamp((seconds - window.start) / (window.end - window.start), 0.01, 0.99)) },
      })));
    }
    said.classList.toggle("bad", window.state === "failed");
    const text = window.error ?? window.text;
    said.textContent = window.start === null ? `${window.id + 1} · ${text}` : text;
  }

  open(window) {
    let turn = this.turns.get(window.turn);
    if (!turn) {
      turn = { windows: 0, title: h("div", { class: "lane turn" }) };
      this.turns.set(window.turn, turn);
      this.list.append(turn.title);
    }
    turn.windows += 1;
    turn.title.textContent = `turn ${window.turn + 1} · ${plural(turn.windows, "window")}`;
    const lane = {
      bar: h("button", { type: "button", class: "bar" }, h("b", {}, String(window.id + 1))),
      said: h("span", { class: "said", "aria-hidden": "true" }),
      row: h("div", { class: window.start === null ? "lane placeless" : "lane" }),
    };
    lane.said.style.setProperty("left", "4px");
    lane.row.append(lane.said);
    this.list.append(lane.row);
    return lane;
  }

  place({ bar, said, row }, window, play) {
    const [left, right] = [this.share(window.start), this.share(window.end)];
    bar.style.setProperty("left", `min(${percent(left)}, calc(100% - 26px))`);
    bar.style.setProperty("width", percent(right - left));
    bar.title = span(window.start, window.end);
    bar.addEventListener("click", play);
    // The text stands where there is more room.
    const before = left > 1 - right;
    said.classList.toggle("left", before);
    said.style.setProperty("left", before ? "4px" : `calc(max(${percent(right)}, ${percent(left)} + 26px) + 10px)`);
    said.style.setProperty("right", before ? `calc(${percent(1 - left)} + 10px)` : "4px");
    row.prepend(bar);
  }

  follow(seconds) {
    if (this.root.hidden) return;
    this.now.hidden = seconds < this.from || seconds > this.to || (seconds === 0 && player.video.paused);
    this.now.style.setProperty("left", percent(this.share(seconds)));
  }
}
