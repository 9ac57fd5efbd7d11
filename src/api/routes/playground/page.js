// The page itself: what the user chooses, asks and stops.

const KEY = "paravt.key";
const SAMPLE = "Which shapes appear while the border is lit? List them in order.";

/** The video asked about: `{ file }` or `{ url }`, with a `name` and, once it is uploaded, its `fileId`. */
let video = null;
/** Answered exchanges, which a follow-up question continues. */
let conversation = [];
/** The running question's `AbortController`. */
let running = null;
let shownAddress = null;

function choose(chosen) {
  anew();
  video = chosen;
  if (shownAddress) URL.revokeObjectURL(shownAddress);
  shownAddress = chosen?.file ? URL.createObjectURL(chosen.file) : null;
  // What is not on the web can't be shown, but the server may read it.
  const address = shownAddress ?? (chosen && /^(https?|data):/i.test(chosen.url) ? chosen.url : null);
  player.load(chosen ? address : null);
  stills.load(address);
  $("drop").hidden = Boolean(chosen);
  $("player").hidden = !chosen;
  $("problem").textContent = "";
  if (!chosen) return;
  $("video-name").textContent = chosen.name;
  describeVideo();
  announce(`Video: ${chosen.name}`);
}

function describeVideo() {
  if (!video) return;
  const seconds = player.video.duration;
  const facts = [video.file ? bytes(video.file.size) : /^file:/i.test(video.url) ? "on the server" : "from the web", Number.isFinite(seconds) ? clock(seconds) : null];
  $("video-facts").textContent = facts.filter(Boolean).join(" · ");
}

function take(file) {
  if (!file) return;
  choose({ file, name: file.name });
  $("question").focus({ preventScroll: true });
}

function takeAddress(text) {
  const address = text.trim();
  if (!/^(https?:\/\/|file:\/\/|data:video\/)/i.test(address)) return false;
  const name = /^data:/i.test(address) ? "video in the address" : decode(address.split(/[?#]/)[0].split("/").pop()) || address;
  choose({ url: address, name });
  $("question").focus({ preventScroll: true });
  return true;
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Begins a new conversation about the same video. */
function anew() {
  running?.abort();
  conversation = [];
  player.leave();
  player.followers.clear();
  pictures.followers.clear();
  for (const old of document.querySelectorAll(".exchange")) old.remove();
  $("empty").hidden = false;
  $("anew").hidden = true;
}

/** Seconds from `90`, `1:30` or `1:02:03`; `null` when there is nothing, `NaN` when it is no time. */
function seconds(text) {
  if (!text.trim()) return null;
  const parts = text.trim().split(":");
  if (parts.length > 3 || !parts.every((part) => /^\d+(\.\d+)?$/.test(part))) return NaN;
  return parts.reduce((sum, part) => sum * 60 + Number(part), 0);
}

/** What the form says, or `{ problem, field }`. */
function form() {
  const question = $("question").value.trim();
  if (!keyWorks()) return { problem: $("key-problem").textContent, field: $("key") };
  if (!video) return { problem: "Choose a video first.", field: $("choose") };
  if (!question) return { problem: "Write a question first.", field: $("question") };
  const [start, end] = [seconds($("from").value), seconds($("to").value)];
  if (Number.isNaN(start)) return { problem: "“Video from” is no time: write seconds or M:SS.", field: $("from") };
  if (Number.isNaN(end)) return { problem: "“Video to” is no time: write seconds or M:SS.", field: $("to") };
  if (!$("temperature").checkValidity()) return { problem: "The temperature is a number from 0 to 2.", field: $("temperature") };
  if (!$("max-tokens").checkValidity()) return { problem: "The longest answer is a whole number of tokens.", field: $("max-tokens") };
  const number = (id) => ($(id).value === "" ? undefined : Number($(id).value));
  return { question, start, end, temperature: number("temperature"), maxTokens: number("max-tokens"),
    dispatch: document.querySelector("[name=dispatch]:checked").value };
}

/** The video as a content part, uploaded where it has to be, and the name of the file it came from, if any. */
async function videoPart(exchange, signal) {
  // While it is uploaded the user may choose another.
  const chosen = video;
  if (chosen.url) return { part: { type: "video_url", video_url: { url: chosen.url } }, file: null };
  if (!chosen.fileId) {
    exchange.does("Uploading…", 0);
    chosen.fileId = await api.upload(chosen.file, signal, (share) => exchange.does("Uploading…", share));
  }
  return { part: filePart(chosen.fileId), file: chosen.name };
}

const filePart = (id) => ({ type: "file", file: { file_id: id } });

function requestBody(asked, part) {
  const range = { ...(asked.start === null ? {} : { start: asked.start }), ...(asked.end === null ? {} : { end: asked.end }) };
  const questions = [...conversation, { question: asked.question }];
  const messages = questions.flatMap(({ question, answer }, place) => [
    { role: "user", content: place === 0 ? [{ ...part, ...range }, { type: "text", text: question }] : question },
    ...(answer === undefined ? [] : [{ role: "assistant", content: answer }]),
  ]);
  return {
    model: $("model").value || "paravt",
    messages,
    ...(asked.temperature === undefined ? {} : { temperature: asked.temperature }),
    ...(asked.maxTokens === undefined ? {} : { max_tokens: asked.maxTokens }),
    stream: true,
    stream_options: { include_usage: true },
    paravt: { dispatch: asked.dispatch, events: true, trace: true, thumbnails: true },
  };
}

async function ask() {
  if (running) return;
  const asked = form();
  $("problem").textContent = asked.problem ?? "";
  if (asked.problem) {
    asked.field.closest("details")?.setAttribute("open", "");
    asked.field.focus();
    // The server may know the key by now.
    if (!keyWorks()) meet();
    return;
  }
  const stop = new AbortController();
  running = stop;
  const exchange = new Exchange(asked.question, asked, (question) => {
    $("question").value = question;
    $("question").focus();
  });
  $("empty").hidden = true;
  for (const details of document.querySelectorAll(".exchange details")) details.open = false;
  $("feed").append(exchange.root);
  $("question").value = "";
  busy(true);
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  exchange.root.scrollIntoView({ behavior: calm ? "auto" : "smooth", block: "start" });
  announce("Asking…");
  try {
    const { part, file } = await videoPart(exchange, stop.signal);
    const body = requestBody(asked, part);
    // Code uploads the file itself: the id is this page's.
    exchange.asks(requestBody(asked, file === null ? part : filePart(VIDEO)), file, Boolean(api.key));
    for await (const chunk of api.ask(body, stop.signal)) exchange.take(chunk);
    exchange.finish();
    if (exchange.answer) conversation.push({ question: asked.question, answer: exchange.answer });
    $("question").placeholder = "Ask a follow-up question";
  } catch (error) {
    if (stop.signal.aborted) {
      exchange.stopped();
      // Most likely to be asked again, a little differently.
      $("question").value ||= asked.question;
    } else {
      exchange.fail(error instanceof ServerError ? error : new ServerError(`This page failed: ${error.message}`));
      // An upload that is gone by now is sent again with the next question.
      if (/file/.test(`${error.code} ${error.param}`) && video) video.fileId = null;
      if (error.status === 401) {
        wantKey(error);
        $("key").focus();
      }
    }
  } finally {
    if (running === stop) {
      running = null;
      busy(false);
    }
  }
}

function busy(now) {
  const focused = document.activeElement;
  $("send").disabled = now;
  $("stop").disabled = !now;
  $("anew").hidden = now || !document.querySelector(".exchange");
  // Who pressed the button keeps a place on the page.
  if (focused === $("send") && now) $("stop").focus();
  else if (focused === $("stop") && !now) $("question").focus({ preventScroll: true });
}

/** Says beside the field what is wrong with the key; empty: nothing is known to be. */
function keyProblem(text) {
  $("key-problem").textContent = text;
  $("key").setAttribute("aria-invalid", String(text !== ""));
}

const keyWorks = () => $("key-problem").textContent === "";

/** The server refused the key, or that there was none. */
function wantKey(error) {
  keyProblem(api.key ? `This API key does not work: ${error.message}.` : "This server wants an API key.");
  $("served").textContent = api.key ? "The API key does not work" : "This server wants an API key";
  $("dot").className = "dot bad";
  $("settings").open = true;
  // Whoever is at work elsewhere on the page stays there.
  if (document.activeElement === document.body) $("key").focus();
}

/** Which model is served, and whether it answers. Asks again until it does. */
async function meet() {
  const { key } = api;
  const say = (text, kind) => {
    $("served").textContent = text;
    $("dot").className = `dot ${kind}`;
  };
  try {
    const { data } = await api.get("v1/models");
    if (key !== api.key) return;
    keyProblem("");
    const names = data.map((model) => model.id);
    $("model").replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    $("tiny").hidden = names[0] !== "paravt-tiny";
    await api.get("ready");
    say(names.join(", "), "ready");
  } catch (error) {
    // Another key was given meanwhile, and is being tried.
    if (key !== api.key) return;
    if (error.status === 401) {
      wantKey(error);
      return;
    }
    say(error.message, error.status === 503 ? "" : "bad");
    setTimeout(meet, 3000);
  }
}

function listen() {
  $("choose").onclick = () => $("file").click();
  $("file").onchange = () => {
    take($("file").files[0]);
    $("file").value = "";
  };
  $("change").onclick = () => {
    choose(null);
    $("choose").focus();
  };
  $("address-form").onsubmit = (event) => {
    event.preventDefault();
    const taken = takeAddress($("address").value);
    $("problem").textContent = taken ? "" : "That is no address of a video: it begins with https:// or http://.";
    if (!taken) $("address").focus();
  };
  $("settings-form").onsubmit = (event) => event.preventDefault();
  $("ask").onsubmit = (event) => {
    event.preventDefault();
    ask();
  };
  $("stop").onclick = () => running?.abort();
  $("anew").onclick = () => {
    anew();
    $("question").focus();
  };
  $("sample").onclick = () => {
    $("question").value = SAMPLE;
    $("question").focus();
  };
  $("key").value = api.key = sessionStorage.getItem(KEY) ?? "";
  $("key").onchange = () => {
    const given = $("key").value.trim();
    // What no header can carry is none.
    api.key = /[^!-~]/.test(given) ? "" : given;
    sessionStorage.setItem(KEY, api.key);
    $("problem").textContent = "";
    // Files are found with the key that uploaded them only.
    if (video) video.fileId = null;
    keyProblem(api.key === given ? "" : "This is no API key: it has spaces or letters that keys don’t have.");
    if (keyWorks()) meet();
  };
  player.video.addEventListener("loadedmetadata", describeVideo);
  addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && $("ask").contains(event.target)) {
      event.preventDefault();
      ask();
    } else if (event.key === "Escape" && running) {
      running.abort();
    }
  });
  addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dragging");
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dragging");
  });
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    const file = event.dataTransfer.files[0];
    if (file) take(file);
    else if (!takeAddress(event.dataTransfer.getData("text"))) $("problem").textContent = "That is no video.";
  });
  if (/Mac|iPhone|iPad/.test(navigator.platform)) $("modifier").textContent = "⌘";
}

listen();
meet();
