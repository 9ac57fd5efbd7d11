// What the scenarios stand on: servers, pages that must stay clean, and the accessibility check.

import { spawn } from "node:child_process";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import path from "node:path";
import { fileURLToPath } from "node:url";

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");
export const demo = path.join(root, "model_cards/paravt-tiny/demo.mp4");
export const told = JSON.parse(readFileSync(path.join(root, "model_cards/paravt-tiny/demo.json"), "utf8"));
// Installed beside a copy of these scripts or wherever NODE_MODULES says; never in the checkout.
const require = createRequire(path.join(process.env.NODE_MODULES ?? root, "x.js"));
export const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

export function check(holds, what) {
  if (!holds) throw new Error(what);
}

export function same(found, expected, what) {
  check(JSON.stringify(found) === JSON.stringify(expected), `${what}: ${JSON.stringify(found)} instead of ${JSON.stringify(expected)}`);
}

function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.on("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

/** A running paravt: `{ base, stop }`, or `null` where this binary lacks what the arguments ask for. */
export async function serve(binary, args, env = {}) {
  const base = `http://127.0.0.1:${await freePort()}/`;
  const options = { cwd: root, env: { ...process.env, ...env }, stdio: ["ignore", "ignore", "pipe"] };
  const child = spawn(binary, ["serve", "--listen", new URL(base).host, ...args], options);
  let log = "";
  let over = false;
  child.stderr.on("data", (data) => { log = (log + data).slice(-8000); });
  child.on("error", (error) => { over = true; log += error.message; });
  child.on("exit", () => { over = true; });
  const until = Date.now() + 60_000;
  while (!over) {
    const ready = await fetch(`${base}ready`).then((response) => response.ok, () => false);
    if (ready) return { base, stop: () => child.kill() };
    if (Date.now() > until) {
      child.kill();
      throw new Error(`the server did not become ready:\n${log}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  if (/without|not built|feature/i.test(log)) return null;
  throw new Error(`the server ended:\n${log}`);
}

/** A page at `address` that fails the scenario when it says an error, or asks anybody but its server for anything. */
export async function open(browser, address, options = {}) {
  const { expected = [], ...context } = options;
  const page = await browser.newPage({ viewport: { width: 1280, height: 860 }, ...context });
  const wrong = [];
  const { origin } = new URL(address);
  page.on("pageerror", (error) => wrong.push(`an exception: ${error.message}`));
  page.on("console", (message) => {
    const { url } = message.location();
    // The browser says so itself when a status is no success; some are meant.
    const meant = message.text().startsWith("Failed to load resource") && expected.some((end) => url.endsWith(end));
    if (["error", "warning"].includes(message.type()) && !meant) wrong.push(`console: ${message.text()} (${url})`);
  });
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(`${origin}/`) && !/^(blob|data):/.test(url)) wrong.push(`a request to ${url}`);
  });
  page.clean = () => same(wrong, [], "the page is not clean");
  await page.goto(address);
  return page;
}

/** WCAG 2.2 AA and axe's best practices. */
export async function accessible(page, where) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, {
    runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
  }));
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ target, failureSummary }) => `${target} (${failureSummary})`).join("; ")}`);
  same(found, [], `accessibility, ${where}`);
}

/** Drops a file as a user does. */
export async function drop(page, file) {
  const data = readFileSync(file).toString("base64");
  await page.evaluate(([text, name]) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File([bytes], name, { type: "video/mp4" }));
    for (const kind of ["dragover", "drop"]) {
      document.querySelector("#drop").dispatchEvent(new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true }));
    }
  }, [data, path.basename(file)]);
}

/** Takes pictures into `folder`, or none where there is none. */
export function camera(folder) {
  if (folder) mkdirSync(folder, { recursive: true });
  return async (page, name, options = {}) => {
    if (folder) await page.screenshot({ path: path.join(folder, `${name}.png`), ...options });
  };
}
