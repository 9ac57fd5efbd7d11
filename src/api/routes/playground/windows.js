// One card for each window: its frames, what its sub-agent says, what it took.

const STATES = {
  decoding: "decoding its frames", watching: "being watched", ok: "watched", shared: "same as another window", failed: "failed",
  unfinished: "not finished",
};

function describe(window) {
  const where = window.start === null ? "no readable window" : span(window.start, window.end);
  return `${where}, ${STATES[window.state]}`;
}

/** How a window that has no summary ended. */
const ENDINGS = { refused: "Refused", not_run: "Not run", failed: "Failed", late: "Too late" };

class WindowCard {
  constructor(window) {
    this.title = h("h4");
    this.frames = h("ul", { class: "frames", "aria-hidden": "true", hidden: true });
    this.summary = h("p", { class: "summary" });
    this.facts = h("footer");
    this.button = h("button", { type: "button", class: "quiet play", "aria-pressed": "false" }, "Play");
    this.root = h("li", { class: "window" },
      h("header", {}, h("span", { class: "number", "aria-hidden": "true" }, String(window.id + 1)), this.title, this.button),
      this.frames, this.summary, this.facts);
  }

  show(window, play) {
    this.root.classList.toggle("failed", window.state === "failed");
    if (window.start === null) {
      this.title.textContent = ENDINGS[window.status] ?? "Failed";
      this.button.hidden = true;
    } else {
      this.title.textContent = span(window.start, window.end);
      this.button.onclick = play;
      this.button.setAttribute("aria-label", `Play window ${window.id + 1}, ${span(window.start, window.end)}`);
    }
    if (this.frames.hidden && window.frames.length) {
      this.frames.hidden = false;
      this.frames.append(...window.frames.map((seconds, place) => h("li", { title: clock(seconds, true) },
        picture(window.thumbnails?.[place], seconds))));
    }
    this.summary.textContent = window.error ?? window.text;
    this.facts.textContent = this.told(window).join(" · ");
  }

  told({ state, status, record, frames, shared }) {
    if (!record) return [`${STATES[state]}…`, frames.length ? plural(frames.length, "frame") : null].filter(Boolean);
    const facts = [];
    if (state === "unfinished") return [STATES.unfinished];
    if (state === "failed" && status !== "failed" && record.start !== null) facts.push((ENDINGS[status] ?? "failed").toLowerCase());
    if (shared !== null) facts.push(`shares window ${shared + 1}`);
    else if (record.finished_ms > record.started_ms) facts.push(duration(record.finished_ms - record.started_ms));
    if (frames.length) facts.push(plural(frames.length, "frame"));
    if (record.partial) facts.push("part of the file is missing");
    const { prompt_tokens: read, completion_tokens: written } = record.usage ?? {};
    if (read || written) facts.push(`${count(read)} tokens read, ${count(written)} written`);
    return facts;
  }
}
