// One question and everything that is shown about it.

let exchanges = 0;

class Exchange {
  constructor(question, part, again) {
    this.id = `exchange-${++exchanges}`;
    this.question = question;
    this.range = part;
    this.state = "running";
    this.answer = "";
    this.windows = new Map();
    this.turns = [];
    this.cards = new Map();
    this.overview = this.trace = this.timing = this.usage = null;
    /** `performance.now()` when the episode began; the server's clock counts from there. */
    this.began = performance.now();
    this.heard = false;
    this.again = again;
    this.build();
  }

  build() {
    this.doing = h("p", { class: "doing" }, "Asking…");
    this.text = h("div", { class: "answer", "aria-live": "polite", "aria-atomic": "true", "aria-busy": "true" });
    this.facts = h("p", { class: "facts" });
    this.reply = h("div", { class: "reply", role: "group", "aria-label": "Answer" }, this.doing, this.text, this.facts);
    this.timeline = new Timeline();
    this.list = h("ol", { class: "cards" });
    this.counted = h("span");
    this.watched = h("section", { "aria-label": "Windows", hidden: true },
      h("h3", { class: "panel-title" }, "Windows", this.counted), this.list);
    this.thought = h("div", { class: "thought", tabindex: "0", role: "group", "aria-label": "Thinking" });
    this.thinking = h("details", { class: "panel thinking", hidden: true }, h("summary", {}, "Thinking"), this.thought);
    this.waterfall = new Waterfall();
    this.root = h("article", { class: "exchange", id: this.id, "aria-labelledby": `${this.id}-question` },
      h("h2", { class: "asked", id: `${this.id}-question` }, this.question), this.reply, this.timeline.root, this.watched,
      this.thinking, this.waterfall.root);
    this.drawing = setInterval(() => this.drawSteps(), 120);
  }

  /** Says what is being done now. `share` of it, where that is known. */
  does(text, share = null) {
    this.doing.replaceChildren(text, ...(share === null ? [] : [h("progress", { value: String(share), max: "1", "aria-label": text })]));
  }

  asks(body, file, withKey) {
    // The pictures are for this page, not for a terminal.
    const { thumbnails, ...told } = body.paravt;
    const plain = { ...body, paravt: told };
    this.root.append(codePanel(this.id, { curl: curl(plain, file, withKey), Python: python(plain, file, withKey) }));
    this.began = performance.now();
    this.does("Opening the video…");
  }

  now() {
    return performance.now() - this.began;
  }

  /** Sets our clock by the server's: the first word of it counts, later only earlier ones. */
  heardAt(ms) {
    if (typeof ms !== "number") return;
    const began = performance.now() - ms;
    this.began = this.heard ? Math.min(this.began, began) : began;
    this.heard = true;
  }

  take(chunk) {
    const delta = chunk.choices?.[0]?.delta ?? {};
    const thought = delta.reasoning_content ?? delta.reasoning;
    if (thought) {
      this.thinking.hidden = false;
      this.thought.append(thought);
      this.thought.scrollTop = this.thought.scrollHeight;
    }
    if (delta.content) {
      this.answer += delta.content;
      this.text.textContent = this.answer;
      this.doing.hidden = true;
    }
    if (chunk.choices?.[0]?.finish_reason === "length") this.cut = true;
    if (chunk.usage) this.usage = chunk.usage;
    const { paravt } = chunk;
    if (!paravt) return;
    if (paravt.event) this.happened(paravt);
    if (paravt.timing) this.timing = paravt.timing;
    if (paravt.trace) this.trace = paravt.trace;
  }

  happened(event) {
    switch (event.event) {
      case "overview":
        this.heardAt(event.at_ms);
        // Events of a second video would be about another timeline; this page asks about one.
        if (event.video !== 0) break;
        this.overview = event;
        this.timeline.overview(event, this.range.start, this.range.end);
        this.does("Looking over the whole video…");
        break;
      case "turn.started":
        this.heardAt(event.at_ms);
        this.turns.push({ turn: event.turn, start: event.at_ms, record: null });
        if (event.turn > 0) this.does("Reading what the windows show…");
        break;
      case "turn.finished": {
        const turn = this.turns.find((known) => known.turn === event.turn);
        if (turn) turn.record = event;
        break;
      }
      case "window.started":
        this.heardAt(event.at_ms);
        this.show(Object.assign(this.window(event.id, event.turn), {
          start: event.start, end: event.end, startedMs: event.at_ms, state: "decoding",
        }));
        break;
      case "window.frames":
        this.heardAt(event.at_ms);
        this.show(Object.assign(this.window(event.id), {
          frames: event.frame_times, thumbnails: event.thumbnails, framesMs: event.at_ms, state: "watching",
        }));
        break;
      case "window.delta": {
        const window = this.window(event.id);
        window.text += event.text;
        this.show(window);
        break;
      }
      case "window.finished":
      case "window.failed":
        this.settle(event);
        break;
    }
  }

  window(id, turn = this.turns.at(-1)?.turn ?? 0) {
    if (!this.windows.has(id)) {
      this.windows.set(id, {
        id, turn, start: null, end: null, state: "decoding", status: null, frames: [], thumbnails: null, text: "", error: null,
        startedMs: null, framesMs: null, record: null, shared: null,
      });
    }
    return this.windows.get(id);
  }

  settle(record) {
    const window = this.window(record.id, record.turn);
    const failed = record.event === "window.failed";
    window.record = record;
    window.status = record.status;
    window.state = failed ? "failed" : record.status === "shared" ? "shared" : "ok";
    window.start ??= record.start ?? null;
    window.end ??= record.end ?? null;
    if (!window.frames.length) window.frames = record.frame_times ?? [];
    window.text = record.summary ?? window.text;
    window.error = failed ? (record.error ?? "It failed, and the server does not say why.") : null;
    window.shared = record.shared_with ?? null;
    this.show(window);
  }

  show(window) {
    let card = this.cards.get(window.id);
    if (!card) {
      card = new WindowCard(window);
      this.cards.set(window.id, card);
      this.list.append(card.root);
      this.watched.hidden = false;
    }
    const play = () => {
      const bar = this.timeline.lanes.get(window.id)?.bar;
      player.play(window.start, window.end, [card.root, bar].filter(Boolean), card.button);
    };
    this.timeline.window(window, play);
    card.show(window, play);
    if (this.state !== "running") return;
    const open = [...this.windows.values()].filter(({ record }) => !record).length;
    this.counted.textContent = `${this.windows.size}${open > 1 ? `, ${open} at once` : ""}`;
    if (open) this.does(open === 1 ? "Watching a window…" : `Watching ${open} windows at the same time…`);
  }

  drawSteps() {
    if (this.state === "running" && !this.heard) return;
    this.waterfall.draw(steps(this), this.now(), this.trace?.total_ms ?? null);
  }

  /** No more comes. */
  end(state) {
    this.state = state;
    clearInterval(this.drawing);
    this.doing.hidden = true;
    this.text.setAttribute("aria-busy", "false");
    if (this.heard) this.drawSteps();
    for (const window of this.windows.values()) {
      if (window.record) continue;
      Object.assign(window, { state: "unfinished", record: { finished_ms: this.now(), started_ms: window.startedMs, timing: {} } });
      this.show(window);
    }
  }

  finish() {
    this.end("done");
    const windows = this.trace?.windows ?? [];
    const { work, wall, most } = overlap(windows);
    const facts = [];
    if (this.timing) facts.push(`${duration(this.timing.total_ms)} in all`);
    if (this.timing?.queue_ms >= 1) facts.push(`${duration(this.timing.queue_ms)} in the queue before`);
    if (this.timing?.first_answer_ms) facts.push(`first word of the answer after ${duration(this.timing.first_answer_ms)}`);
    if (most > 1 && work - wall >= 10) facts.push(`${most} windows at once saved ${duration(work - wall)}`);
    if (this.usage) {
      const cached = this.usage.prompt_tokens_details?.cached_tokens ?? 0;
      facts.push(`${count(this.usage.prompt_tokens)} tokens read${cached ? ` (${count(cached)} cached)` : ""}, ${count(this.usage.completion_tokens)} written`);
    }
    if (this.cut) facts.push("cut at its longest length");
    this.facts.replaceChildren(...facts.map((fact) => h("span", {}, fact)));
    this.counted.textContent = String(this.windows.size);
    if (!this.answer) this.text.textContent = "The model gave no answer.";
    announce(this.timing ? `Answered in ${duration(this.timing.total_ms)}.` : "Answered.");
  }

  stopped() {
    this.end("stopped");
    this.facts.replaceChildren(h("span", {}, "Stopped."));
    announce("Stopped.");
  }

  fail(error) {
    this.end("failed");
    this.reply.classList.add("bad");
    const details = [error.code, error.param && `at ${error.param}`, error.status && `status ${error.status}`].filter(Boolean);
    this.reply.append(h("div", { class: "error" }, h("strong", {}, "Not answered"), h("span", {}, error.message),
      details.length ? h("code", {}, details.join(" · ")) : null,
      h("button", { type: "button", class: "quiet", onclick: () => this.again(this.question) }, "Ask again")));
    announce(`Not answered: ${error.message}`);
  }
}
