// The playground in a real browser, against a real server.
//
//     node playground.mjs [--binary PATH] [--chromium PATH] [--screenshots FOLDER] [--only NAME]

import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";

import { accessible, camera, check, chromium, demo, drop, open, root, same, serve, told } from "./harness.mjs";

const { values } = parseArgs({ options: {
  binary: { type: "string", default: path.join(process.env.CARGO_TARGET_DIR ?? path.join(root, "target"), "release/paravt") },
  chromium: { type: "string", default: "/usr/bin/chromium" },
  screenshots: { type: "string" },
  only: { type: "string" },
} });
const shoot = camera(values.screenshots);
const ASKED = ["/v1/chat/completions"];

const facts = (page) => page.locator(".exchange").last().locator(".facts span").first();

async function ask(page, question) {
  await page.fill("#question", question);
  await page.click("#send");
}

/** Every picture on the page has been drawn. */
async function drawn(page) {
  await page.waitForFunction(() => [...document.querySelectorAll("canvas.picture")].every(({ width }) => width > 2)
    && [...document.querySelectorAll("img.picture")].every(({ complete }) => complete));
}

const scenarios = {
  /** The whole way: drop the demonstration, ask, watch, read, play, copy. */
  async asks_about_a_dropped_video({ browser, model, scripted }) {
    const server = model ?? scripted;
    const page = await open(browser, server.base);
    await page.locator(".dot.ready").waitFor();
    await shoot(page, "empty");
    await accessible(page, "before a question");
    await drop(page, demo);
    await page.locator("#video-facts", { hasText: "5:00" }).waitFor();
    await ask(page, told.question);
    await page.locator(".bar").first().waitFor();
    await shoot(page, "running");
    await facts(page).waitFor();
    const answer = await page.textContent(".answer");
    same(answer, told.answer, "the answer");
    // The windows of the demonstration are known.
    const titles = await page.locator(".window h4").allTextContents();
    same(titles.slice(0, 3), ["0:20 – 1:00", "2:40 – 3:00", "4:00 – 4:40"], "windows");
    same(await page.locator(".strip button").count() > 4, true, "overview frames");
    same(await page.locator(".window").first().locator(".frames li").count(), 16, "frames of a window");
    const places = await page.locator(".bar").evaluateAll((bars) => bars.map((bar) => {
      const axis = bar.closest(".axis").getBoundingClientRect();
      return Math.round((1000 * (bar.getBoundingClientRect().left - axis.left)) / axis.width);
    }));
    for (const [place, start] of [20, 160, 240].entries()) check(Math.abs(places[place] - (1000 * start) / 300.2) < 4, `bar at ${places[place]}`);
    const rows = await page.locator(".steps tbody tr").evaluateAll((all) => all.map((row) => [
      row.querySelector("th").textContent, row.querySelector(".figure").textContent, row.querySelectorAll(".track i").length,
    ]));
    const names = rows.map(([name]) => name.replace(" ✕", ""));
    same(names.slice(0, 6), ["open", "overview", "turn 1", "window 1", "window 2", "window 3"], "steps");
    same(names.slice(-2), ["turn 2", "total"], "the last steps");
    for (const [name, time, bars] of rows) check(/^\d/.test(time) && (bars > 0 || name === "total"), `${name}: ${time}, ${bars} bars`);
    await page.click(".thinking summary");
    check((await page.textContent(".thought")).length > 10, "thinking");
    await drawn(page);
    await shoot(page, "answered");
    await page.click(".code summary");
    await page.getByRole("tab", { name: "Python" }).click();
    await accessible(page, "after an answer");
    await shoot(page, "answered-all", { fullPage: true });
    await page.getByRole("tab", { name: "curl" }).click();
    await code(page);
    page.clean();
  },

  /** The texts that the page offers really run. */
  async code_that_is_shown_runs({ browser, model, scripted }) {
    const server = model ?? scripted;
    const page = await open(browser, server.base);
    await page.setInputFiles("#file", demo);
    // What shells and JSON would stumble over.
    await ask(page, `${told.question} 'a' "b" $HOME \`c\` \\n`);
    await facts(page).waitFor();
    await page.click(".code summary");
    const answer = await page.textContent(".answer");
    same(curl(await page.textContent(".code pre >> nth=0")), answer, "what curl answers");
    const python = await page.locator(".code pre").nth(1).textContent();
    execFileSync("python3", ["-c", "import ast, sys; ast.parse(sys.stdin.read())"], { input: python });
    check(python.includes("client.chat.completions.create(") && python.includes('"b"') === false && python.includes('\\"b\\"'), python);
    page.clean();
  },

  async windows_that_fail_say_why_where_they_are({ browser, scripted }) {
    const page = await open(browser, scripted.base);
    await drop(page, demo);
    await ask(page, told.question);
    await page.locator(".doing", { hasText: "at the same time" }).waitFor();
    await shoot(page, "watching");
    await facts(page).waitFor();
    same(await page.locator(".window").count(), 4, "windows");
    same(await page.locator(".window.failed").count(), 2, "failed ones");
    same(await page.locator('.bar[data-state="failed"]').count(), 1, "failed ones with a place in the video");
    const errors = await page.locator(".window.failed .summary").allTextContents();
    check(errors.some((text) => /could not be watched/.test(text)), errors.join());
    check(errors.every((text) => text.length > 10), errors.join());
    check((await page.locator(".window.failed").last().locator("h4").textContent()) === "Refused", "the refused one");
    same(await page.locator(".window.failed .play:visible").count(), 1, "what can be played");
    await drawn(page);
    await accessible(page, "with failed windows");
    await shoot(page, "failed-windows", { fullPage: true });
    page.clean();
  },

  async a_follow_up_continues_the_conversation_and_a_new_one_does_not({ browser, scripted }) {
    const page = await open(browser, scripted.base);
    const bodies = [];
    page.on("request", (request) => request.url().endsWith(ASKED[0]) && bodies.push(JSON.parse(request.postData())));
    await drop(page, demo);
    await page.click("#settings summary");
    await page.check('[name=dispatch][value="sequential"]', { force: true });
    await page.fill("#temperature", "0.5");
    await page.fill("#max-tokens", "99");
    await page.fill("#from", "0:10");
    await page.fill("#to", "290");
    await ask(page, "The first?");
    await facts(page).waitFor();
    await ask(page, "The second?");
    await page.locator(".exchange").nth(1).locator(".facts span").first().waitFor();
    const shape = (body) => body.messages.map(({ role, content }) => [role, Array.isArray(content) ? content.map(({ type }) => type).join() : content]);
    same(shape(bodies[0]), [["user", "file,text"]], "the first question");
    same(shape(bodies[1]), [["user", "file,text"], ["assistant", told.answer], ["user", "The second?"]], "the second");
    const { start, end } = bodies[1].messages[0].content[0];
    same([start, end, bodies[1].temperature, bodies[1].max_tokens, bodies[1].paravt.dispatch], [10, 290, 0.5, 99, "sequential"], "settings");
    same(bodies[1].paravt.thumbnails, true, "thumbnails");
    await shoot(page, "conversation", { fullPage: true });
    await page.click("#anew");
    same(await page.locator(".exchange").count(), 0, "exchanges left");
    check(await page.locator("#empty").isVisible(), "the introduction is back");
    await ask(page, "Another?");
    await facts(page).waitFor();
    same(shape(bodies[2]), [["user", "file,text"]], "a new conversation");
    page.clean();
  },

  async errors_of_the_server_are_shown_with_their_code({ browser, scripted }) {
    const page = await open(browser, scripted.base, { expected: ASKED });
    // The server's folders are not allowed, and the browser doesn't even try.
    await page.fill("#address", "file:///srv/nothing.mp4");
    await page.keyboard.press("Enter");
    check(await page.locator("#unplayable").isVisible(), "that it can't be shown");
    await ask(page, "What happens?");
    const error = page.locator(".error");
    await error.waitFor();
    const text = await error.textContent();
    check(text.includes("source_not_allowed") && text.includes("status 403") && text.includes("messages[0].content[0].video_url.url"), text);
    await accessible(page, "with an error");
    await shoot(page, "error");
    await error.getByRole("button", { name: "Ask again" }).click();
    same(await page.inputValue("#question"), "What happens?", "the question to ask again");
    check(!(await page.isDisabled("#send")), "one can ask again");
    // What the page finds wrong itself.
    await page.click("#settings summary");
    await page.fill("#from", "soon");
    await page.click("#send");
    check((await page.textContent("#problem")).includes("Video from"), "what is wrong in the form");
    page.clean();
  },

  async stopping_stops_the_server_too({ browser, slow }) {
    const page = await open(browser, slow.base);
    const running = async () => {
      const text = await (await fetch(`${slow.base}metrics`)).text();
      return text.split("\n").find((line) => line.startsWith("paravt_api_running ")) === "paravt_api_running 1";
    };
    for (const how of ["button", "Escape"]) {
      if (how === "button") await drop(page, demo);
      await ask(page, "How long?");
      await page.locator(".exchange").last().locator('.bar[data-state="watching"]').waitFor();
      check(await running(), "it runs");
      if (how === "button") await page.click("#stop");
      else await page.keyboard.press("Escape");
      await page.locator(".exchange").last().locator(".facts", { hasText: "Stopped" }).waitFor();
      check(await page.isDisabled("#stop"), "nothing to stop");
      same(await page.inputValue("#question"), "How long?", "the question is kept");
      const until = Date.now() + 20_000;
      while (await running()) check(Date.now() < until, "the server goes on");
    }
    await shoot(page, "stopped");
    page.clean();
  },

  async all_can_be_done_with_the_keyboard({ browser, scripted }) {
    const page = await open(browser, scripted.base);
    // Asked for early: the browser has to be told, and the key must not come first.
    const choosing = page.waitForEvent("filechooser");
    await page.keyboard.press("Tab");
    same(await page.evaluate(() => document.activeElement.className), "skip", "the first stop");
    await page.keyboard.press("Enter");
    await page.keyboard.press("Shift+Tab");
    await page.keyboard.press("Shift+Tab");
    await page.keyboard.press("Shift+Tab");
    same(await page.evaluate(() => document.activeElement.id), "choose", "three stops before the question");
    await page.keyboard.press("Enter");
    await (await choosing).setFiles(demo);
    await page.locator("#video-facts", { hasText: "5:00" }).waitFor();
    same(await page.evaluate(() => document.activeElement.id), "question", "after the file");
    await page.keyboard.type(told.question);
    await page.keyboard.press("Control+Enter");
    await facts(page).waitFor();
    // Every stop on the way is seen, and all that can be used is a stop.
    await page.locator(".skip").focus();
    await page.locator(".skip").evaluate((skip) => { skip.dataset.reached = "yes"; });
    const stops = [];
    for (let step = 0; step < 80; step++) {
      await page.keyboard.press("Tab");
      const stop = await page.evaluate(() => {
        const at = document.activeElement;
        // A video's own controls are stops of one element.
        if (at === document.body || (at.dataset.reached && at.tagName !== "VIDEO")) return null;
        const style = getComputedStyle(at.matches(".segments input") ? at.nextElementSibling : at);
        at.dataset.reached = "yes";
        return { what: at.id || at.className || at.tagName, seen: style.outlineStyle !== "none" || at.tagName === "VIDEO" };
      });
      if (stop === null) break;
      stops.push(stop);
    }
    same(stops.filter(({ seen }) => !seen), [], "stops that don't show");
    const missed = await page.evaluate(() => [...document.querySelectorAll("button, a[href], input, select, textarea, summary, [tabindex='0']")]
      .filter((node) => node.checkVisibility({ visibilityProperty: true }) && !node.disabled && node.tabIndex >= 0 && !node.dataset.reached
        && !(node.type === "radio" && !node.checked)).map((node) => node.id || node.className || node.outerHTML));
    same(missed, [], "what Tab does not reach");
    // The frames are one stop; arrows go on within.
    await page.locator(".strip button").first().focus();
    await page.keyboard.press("ArrowRight");
    check((await page.evaluate(() => document.activeElement.getAttribute("aria-label"))).startsWith("Frame at"), "arrows");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelector("#video").currentTime > 5);
    check(await page.locator(".now").isVisible(), "where the video is");
    page.clean();
  },

  async a_window_plays_just_its_seconds({ browser, scripted }) {
    const page = await open(browser, scripted.base);
    await drop(page, demo);
    await ask(page, told.question);
    await facts(page).waitFor();
    await page.evaluate(() => { document.querySelector("#video").defaultPlaybackRate = document.querySelector("#video").playbackRate = 16; });
    const play = page.locator(".window .play").nth(1);
    await play.focus();
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => !document.querySelector("#video").paused && document.querySelector("#video").currentTime > 160);
    same(await page.locator(".bar.playing").textContent(), "2", "the bar that lights up");
    same(await play.getAttribute("aria-pressed"), "true", "pressed");
    await shoot(page, "playing");
    await page.waitForFunction(() => document.querySelector("#video").paused);
    const ended = await page.evaluate(() => document.querySelector("#video").currentTime);
    check(Math.abs(ended - 180) < 0.5, `stopped at ${ended}`);
    same(await page.locator(".playing").count(), 0, "what still lights up");
    page.clean();
  },

  /** A server that says what no server of ours says. */
  async text_from_the_server_stays_text_and_pictures_are_shown({ browser, scripted }) {
    const page = await open(browser, scripted.base);
    const evil = '<img src="x" onerror="document.title=1"><script>document.title=2</scr' + "ipt>";
    const pixel = `data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==`;
    const chunks = [
      { event: "overview", video: 0, duration: 100, frame_times: [0, 50, 100], keyframes: true, partial: false, treatment: [evil], at_ms: 5, thumbnails: [pixel, pixel, "https://evil.example/x.png"] },
      { event: "turn.started", turn: 0, at_ms: 6 },
      { event: "window.started", id: 0, turn: 0, video: 0, start: 10, end: 20, at_ms: 7 },
      { event: "window.frames", id: 0, frame_times: [10, 15], at_ms: 9, thumbnails: [pixel, pixel] },
      { event: "window.delta", id: 0, text: evil },
      { event: "something.newer", id: 0 },
    ].map((paravt) => ({ choices: [{ index: 0, delta: {} }], paravt }));
    chunks.push({ choices: [{ index: 0, delta: { content: evil, reasoning: evil } }] });
    let asked = null;
    await page.route("**/v1/files", (route) => route.fulfill({ json: { id: "file-abc123", object: "file" } }));
    await page.route("**/v1/chat/completions", (route) => {
      asked = JSON.parse(route.request().postData());
      const body = [": keep-alive", ...[...chunks, { error: { message: evil, code: "engine_failed" } }].map((chunk) => `data: ${JSON.stringify(chunk)}`)].join("\n\n");
      return route.fulfill({ contentType: "text/event-stream", body: `${body}\n\n` });
    });
    await page.click("#settings summary");
    await page.fill("#key", "sk-secret");
    await page.locator("#key").blur();
    await drop(page, demo);
    const [upload] = await Promise.all([page.waitForRequest("**/v1/files"), ask(page, evil)]);
    same(upload.headers().authorization, "Bearer sk-secret", "the key");
    await page.locator(".error").waitFor();
    same(asked.messages[0].content[0], { type: "file", file: { file_id: "file-abc123" } }, "the uploaded file");
    for (const place of [".asked", ".answer", ".thought", ".error span", ".said"]) same(await page.textContent(place), evil, place);
    same(await page.locator(".exchange script, .exchange img:not(.picture)").count(), 0, "elements out of text");
    same(await page.locator(".frames img.picture").count(), 2, "pictures of a window");
    same(await page.locator(".strip img.picture").count(), 2, "pictures of the overview, of which one is no picture");
    same(await page.title(), "paravt playground", "the title");
    await page.click(".code summary");
    const texts = await page.locator(".code pre").allTextContents();
    check(texts[0].includes('"file_id": "$video"') && texts[0].includes("-F purpose=user_data") && texts[1].includes("video.id"), texts.join("\n"));
    check(texts.every((text) => text.includes("PARAVT_API_KEY") && !text.includes("sk-secret")), "the key is not shown");
    same(await page.evaluate(() => [localStorage.length, sessionStorage.getItem("paravt.key")]), [0, "sk-secret"], "where the key is");
    page.clean();
  },

  /** Keys, from the one that is missing to the one that is taken away. */
  async a_server_with_keys_asks_for_one({ browser, locked }) {
    const { base, keys, alice, bob } = locked;
    const { origin } = new URL(base);
    const expected = ["/v1/models", "/v1/files", ...ASKED];
    const page = await open(browser, base, { expected });
    const uploads = [];
    page.on("request", (request) => request.url().endsWith("/v1/files") && uploads.push(request.headers().authorization));
    const problem = page.locator("#key-problem");
    const give = async (key) => {
      await page.fill("#key", key);
      await page.press("#key", "Enter");
    };
    const asks = async (name, text) => {
      await problem.filter({ hasText: text }).waitFor();
      check(await page.locator("#key").isVisible(), `${name}: the field shows`);
      same(await page.getAttribute("#key", "aria-invalid"), "true", `${name}: the field is marked`);
      await accessible(page, name);
      await shoot(page, name);
    };
    // None yet: the field is there, ready to type into, and nothing is sent in vain.
    await asks("key-missing", /wants an API key/);
    same(await page.evaluate(() => document.activeElement.id), "key", "where one types");
    same(await page.textContent("#served"), "This server wants an API key", "what the head says");
    await drop(page, demo);
    await ask(page, told.question);
    check((await page.textContent("#problem")).includes("wants an API key"), "what is missing");
    same([await page.evaluate(() => document.activeElement.id), uploads, await page.locator(".exchange").count()], ["key", [], 0], "nothing sent");
    // Wrong ones.
    await give("paravt-none-of-theirs");
    await asks("key-wrong", /This API key does not work: the key is not valid/);
    await give("a key … of words");
    await asks("key-impossible", /no API key/);
    // The right one: uploads, pictures, frames.
    await give(alice);
    await page.locator(".dot.ready").waitFor();
    same([await page.textContent("#key-problem"), await page.getAttribute("#key", "aria-invalid")], ["", "false"], "nothing is wrong");
    await ask(page, told.question);
    await facts(page).waitFor();
    same(await page.textContent(".answer"), told.answer, "the answer");
    same(await page.locator(".window").first().locator(".frames img.picture").count(), 16, "pictures of a window");
    check(await page.locator(".strip img.picture").count() > 4, "pictures of the overview");
    same(await page.locator("img.picture").evaluateAll((all) => all.filter(({ complete, naturalWidth }) => !complete || !naturalWidth).length), 0, "broken pictures");
    const stored = async (key) => {
      const response = await fetch(`${origin}/v1/files`, { headers: key ? { authorization: `Bearer ${key}` } : {} });
      return response.ok ? (await response.json()).data.length : response.status;
    };
    same([await stored(alice), await stored(bob), await stored(null)], [1, 0, 401], "whose the file is");
    await shoot(page, "key-answered");
    await page.click(".code summary");
    const command = await page.textContent(".code pre >> nth=0");
    check(!command.includes(alice) && command.includes("PARAVT_API_KEY"), command);
    same(curl(command, { PARAVT_API_KEY: alice }), told.answer, "what curl answers");
    // A follow-up takes the same file; another key can't, so it is sent again.
    await ask(page, "And then?");
    await facts(page).waitFor();
    same(uploads, [`Bearer ${alice}`], "uploads");
    await give(bob);
    await ask(page, "And now?");
    await facts(page).waitFor();
    same(uploads, [`Bearer ${alice}`, `Bearer ${bob}`], "uploads");
    same(await stored(bob), 1, "files of the other key");
    // Kept in the tab when the page is loaded again.
    await page.reload();
    await page.locator(".dot.ready").waitFor();
    same([await page.inputValue("#key"), await page.evaluate(() => localStorage.length)], [bob, 0], "the key");
    // Taken away while the page is open. The server looks every two seconds.
    await drop(page, demo);
    writeFileSync(keys.file, keys.text(alice));
    const until = Date.now() + 20_000;
    while ((await stored(bob)) !== 401) check(Date.now() < until, "the key is gone");
    await ask(page, told.question);
    await page.locator(".error", { hasText: "status 401" }).waitFor();
    await asks("key-revoked", /does not work/);
    same(await page.evaluate(() => document.activeElement.id), "key", "where one types");
    // A key that works after all is noticed when one asks again.
    writeFileSync(keys.file, keys.text(alice, bob));
    while ((await stored(bob)) === 401) check(Date.now() < until + 20_000, "the key is back");
    await ask(page, told.question);
    await page.locator(".dot.ready").waitFor();
    await ask(page, told.question);
    await facts(page).waitFor();
    page.clean();
    // Small and dark; and the pages that hold nothing of anyone's need no key.
    const small = await open(browser, base, { expected, viewport: { width: 360, height: 740 }, colorScheme: "dark" });
    await small.locator("#key-problem", { hasText: "wants" }).waitFor();
    check(await small.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "too wide");
    await accessible(small, "key-missing, narrow and dark");
    await shoot(small, "key-missing-narrow-dark");
    small.clean();
    const docs = await open(browser, `${base}docs`);
    await docs.locator("#schemas").waitFor();
    docs.clean();
  },

  async narrow_wide_dark_and_still({ browser, scripted }) {
    for (const [name, options] of Object.entries({
      narrow: { viewport: { width: 360, height: 740 } },
      "narrow-dark": { viewport: { width: 360, height: 740 }, colorScheme: "dark" },
      dark: { colorScheme: "dark" },
      wide: { viewport: { width: 1920, height: 1000 } },
      still: { reducedMotion: "reduce" },
    })) {
      const page = await open(browser, scripted.base, options);
      await drop(page, demo);
      await ask(page, told.question);
      await page.locator(".bar").first().waitFor();
      const moving = await page.evaluate(() => document.getAnimations().length);
      if (name === "still") same(moving, 0, "animations");
      else check(moving > 0, "something moves while it runs");
      await facts(page).waitFor();
      await page.locator(".code summary").click();
      await page.click("#settings summary");
      const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      check(wider <= 0, `${name}: ${wider} px too wide`);
      await drawn(page);
      await accessible(page, name);
      await shoot(page, name);
      await shoot(page, `${name}-all`, { fullPage: true });
      page.clean();
      await page.close();
    }
  },

  async the_api_reference_shows_every_route_and_schema({ browser, scripted }) {
    for (const [name, options] of Object.entries({ docs: {}, "docs-narrow": { viewport: { width: 360, height: 740 }, colorScheme: "dark" } })) {
      const page = await open(browser, `${scripted.base}docs`, options);
      await page.locator("#schemas").waitFor();
      const document = await (await fetch(`${scripted.base}openapi.json`)).json();
      same(await page.locator(".operation").count(), Object.values(document.paths).flatMap(Object.keys).length, "operations");
      same(await page.locator("#schemas details").count(), Object.keys(document.components.schemas).length, "schemas");
      await page.locator(".operation .shape summary", { hasText: "ChatCompletionRequest" }).first().click();
      await page.locator(".operation .fields-list .name", { hasText: /^messages$/ }).first().waitFor();
      await accessible(page, name);
      const wider = await page.evaluate(() => globalThis.document.documentElement.scrollWidth - innerWidth);
      check(wider <= 0, `${name}: ${wider} px too wide`);
      await shoot(page, name);
      page.clean();
      await page.close();
    }
  },
};

/** Runs the command that the page shows, beside the video, and gives the answer. */
function curl(command, env = {}) {
  const options = { cwd: path.dirname(demo), env: { ...process.env, ...env }, input: command, encoding: "utf8", timeout: 120_000 };
  const streamed = execFileSync("bash", ["-s"], { ...options, maxBuffer: 64 << 20 });
  const chunks = streamed.split("\n").filter((line) => line.startsWith("data: {")).map((line) => JSON.parse(line.slice(6)));
  return chunks.map((chunk) => chunk.choices?.[0]?.delta?.content ?? "").join("");
}

/** Copies the code and looks at what arrives. */
async function code(page) {
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await page.locator(".copy").click();
  await page.locator(".copy", { hasText: "Copied" }).waitFor();
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  same(copied, await page.textContent(".code pre >> nth=0"), "what is copied");
  check(copied.startsWith("curl -sSN http") || copied.startsWith("video=$(curl"), copied);
}

/** A server with a file of two keys, `alice`'s and `bob`'s, as `paravt keys new` makes them. */
async function lockedServer(args) {
  const folder = mkdtempSync(path.join(tmpdir(), "paravt-keys-"));
  const file = path.join(folder, "keys.toml");
  const made = {};
  const entries = {};
  for (const name of ["alice", "bob"]) {
    const own = path.join(folder, `${name}.toml`);
    made[name] = execFileSync(values.binary, ["keys", "new", "--name", name, "--append", own], { encoding: "utf8", stdio: "pipe" }).trim();
    entries[made[name]] = readFileSync(own, "utf8");
  }
  const keys = { file, text: (...of) => of.map((key) => entries[key]).join("\n") };
  writeFileSync(file, keys.text(made.alice, made.bob));
  const server = await serve(values.binary, args, { PARAVT_SERVER_KEYS_FILE: file });
  const stop = () => {
    server.stop();
    rmSync(folder, { recursive: true });
  };
  return { ...server, ...made, keys, stop };
}

const script = (name) => ["--engine", "scripted", "--script", path.join(root, "load_tests/playground/scripts", name)];
const servers = [];
let failed = 0;
let browser = null;
try {
  for (const args of [["--card", "paravt-tiny"], script("windows.json"), script("slow.json")]) servers.push(await serve(values.binary, args));
  servers.push(await lockedServer(script("windows.json")));
  const [model, scripted, slow, locked] = servers;
  if (!model) console.log("this binary has no model of its own: the scripted engine stands in");
  browser = await chromium.launch({ executablePath: values.chromium, args: process.getuid?.() === 0 ? ["--no-sandbox"] : [] });
  for (const [name, scenario] of Object.entries(scenarios)) {
    if (values.only && name !== values.only) continue;
    const context = await browser.newContext();
    try {
      await scenario({ browser, model, scripted, slow, locked });
      console.log(`ok      ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED  ${name}\n${error.stack}`);
      for (const page of browser.contexts().flatMap((open) => open.pages())) await shoot(page, `failed-${name}`).catch(() => {});
    }
    await context.close();
    for (const open of browser.contexts()) await open.close();
  }
} finally {
  await browser?.close();
  for (const server of servers) server?.stop();
}
console.log(failed ? `${failed} failed` : "the playground works");
process.exitCode = failed ? 1 : 0;
