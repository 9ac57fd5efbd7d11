// What all parts of the page share. Text from the server becomes text nodes only: the page's policy forbids the rest.

/** An element. `on…` attributes are listeners, `css` sets properties, `null` and `false` are left out. */
function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name === "css") for (const [key, set] of Object.entries(value)) node.style.setProperty(key, set);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const $ = (id) => document.getElementById(id);

/** An address of this server's, also behind a proxy that serves it below a path. */
const at = (path) => new URL(path, new URL(".", location.href)).href;

const percent = (share) => `${(100 * share).toFixed(3)}%`;
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const count = (number) => number.toLocaleString("en");
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** Seconds as `M:SS` or `H:MM:SS`, with tenths where they are asked for and there are any. */
function clock(seconds, tenths = false) {
  const all = Math.round(seconds * 10) / 10;
  const whole = Math.floor(all);
  const rest = Math.round((all - whole) * 10);
  const two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60;
  const text = hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
  return tenths && rest ? `${text}.${rest}` : text;
}

const span = (start, end) => `${clock(start)} – ${clock(end)}`;

function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
}

function bytes(number) {
  if (number < 1 << 20) return `${Math.max(1, Math.round(number / 1024))} kB`;
  if (number < 1 << 30) return `${(number / (1 << 20)).toFixed(1)} MB`;
  return `${(number / (1 << 30)).toFixed(2)} GB`;
}

/** Tells screen readers what happened. */
function announce(text) {
  $("live").textContent = text;
}

/** A button that copies what `text()` gives. */
function copyButton(text) {
  const button = h("button", { type: "button", class: "quiet copy" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      // Without HTTPS there is no clipboard: what is selected can be copied by hand.
      const pre = button.closest("details").querySelector("pre:not([hidden])");
      getSelection().selectAllChildren(pre);
      button.textContent = "Selected";
    }
    announce(button.textContent);
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });
  return button;
}
