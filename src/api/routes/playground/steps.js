// Where the time went: a waterfall of every step, live from events and at the end from the trace.

const STAGES = [
  ["fetch", "open the video"], ["decode", "decode frames"], ["queue", "queue for the engine"],
  ["prefill", "prefill (read)"], ["generate", "generate (write)"],
];

/** Rows of the table. Times in milliseconds since the episode began; `end` is `null` while a step runs. */
function steps({ overview, trace, turns, windows }) {
  const rows = [];
  if (trace) {
    rows.push({ name: "open", start: 0, end: trace.open_ms, stages: [["fetch", trace.open_ms]] });
    rows.push({ name: "overview", start: trace.open_ms, end: trace.overview_ms,
      stages: [["decode", trace.overview_ms - trace.open_ms]] });
  } else {
    const end = overview ? overview.at_ms : null;
    rows.push({ name: "open, overview", start: 0, end, stages: end === null ? [] : [["decode", end]] });
  }
  for (const turn of turns) {
    const { record } = turn;
    rows.push({ name: `turn ${turn.turn + 1}`, start: turn.start, end: record ? record.finished_ms : null,
      stages: record ? stages(record.timing) : [], usage: record?.usage });
    for (const window of windows.values()) {
      if (window.turn !== turn.turn || window.startedMs === null) continue;
      const done = window.record;
      const decoded = window.framesMs === null ? [] : [["decode", window.framesMs - window.startedMs]];
      rows.push({ name: `window ${window.id + 1}`, sub: true, failed: window.state === "failed", start: window.startedMs,
        end: done ? done.finished_ms : null, stages: done ? stages(done.timing) : decoded, usage: done?.usage });
    }
  }
  return rows;
}

function stages(timing) {
  const { decode_ms: decode, queue_ms: queue, prefill_ms: prefill, generate_ms: generate } = timing;
  return [["decode", decode], ["queue", queue], ["prefill", prefill], ["generate", generate]].filter(([, ms]) => ms > 0);
}

class Waterfall {
  constructor() {
    this.body = h("tbody");
    const legend = h("ul", { class: "legend", "aria-hidden": "true" },
      STAGES.map(([kind, meaning]) => h("li", {}, h("i", { class: kind }), meaning)));
    const head = h("tr", {}, h("th", { scope: "col" }, "Step"), h("th", { scope: "col", class: "track" }, h("span", { class: "hidden" }, "Stages")),
      h("th", { scope: "col", class: "figure" }, "Time"),
      h("th", { scope: "col", class: "figure tokens" }, "Tokens read"), h("th", { scope: "col", class: "figure tokens" }, "cached"),
      h("th", { scope: "col", class: "figure tokens" }, "written"));
    this.root = h("details", { class: "panel waterfall", open: true, hidden: true }, h("summary", {}, "Where the time went"),
      h("table", { class: "steps" }, h("thead", {}, head), this.body), legend);
  }

  draw(rows, now, total) {
    this.root.hidden = false;
    const length = Math.max(total ?? now, ...rows.map((row) => row.end ?? 0), 1);
    const drawn = rows.map((row) => this.row(row, now, length));
    if (total !== null) drawn.push(this.row({ name: "total", total: true, start: 0, end: total, stages: [] }, now, length));
    this.body.replaceChildren(...drawn);
  }

  row(row, now, length) {
    const end = row.end ?? Math.max(now, row.start);
    const parts = [];
    let at = row.start;
    const told = [];
    for (const [kind, ms] of row.stages) {
      parts.push(h("i", { class: kind, css: { left: percent(at / length), width: percent(ms / length) } }));
      at += ms;
      if (ms >= 0.5) told.push(`${kind} ${duration(ms)}`);
    }
    if (row.end === null && end > at) {
      parts.push(h("i", { class: "pending", css: { left: percent(at / length), width: percent((end - at) / length) } }));
    }
    const figure = (value) => h("td", { class: "figure tokens" }, value === undefined || value === null ? "" : count(value));
    const { prompt_tokens: read, cached_tokens: cached, completion_tokens: written } = row.usage ?? {};
    return h("tr", { class: [row.sub && "sub", row.total && "total"].filter(Boolean).join(" ") || null },
      h("th", { scope: "row" }, row.name, row.failed ? " ✕" : null),
      h("td", { class: "track" }, h("div", {}, parts), told.length > 1 ? h("span", { class: "told" }, told.join(" · ")) : null),
      h("td", { class: "figure" }, row.end === null ? "…" : duration(end - row.start)),
      figure(read), figure(cached), figure(written));
  }
}

/** What watching at the same time saved: work, wall time, and the most windows at once. */
function overlap(windows) {
  const spans = windows.filter((window) => window.finished_ms > window.started_ms && window.shared_with === undefined)
    .map((window) => [window.started_ms, window.finished_ms]).sort(([left], [right]) => left - right);
  let [work, wall, until, most] = [0, 0, 0, 0];
  for (const [start, end] of spans) {
    work += end - start;
    wall += Math.max(0, end - Math.max(start, until));
    until = Math.max(until, end);
    most = Math.max(most, spans.filter(([from, to]) => from <= start && start < to).length);
  }
  return { work, wall, most };
}
