// The same request in other words: curl and Python.

/** Stands for the video while the code around it is written; nobody's text can hold it. */
const VIDEO = `video-${Math.random().toString(36).slice(2)}-${Date.now()}`;

/** A name that is safe within quotes of every language here. */
const plainName = (name) => (/^[\w][\w .-]*$/.test(name) ? name : "video.mp4");

/** `file` is the name of the file to upload, which `body` names by `VIDEO`; `null` where it has the video's address. */
function curl(body, file, withKey) {
  const key = withKey ? ` \\\n  -H "Authorization: Bearer $PARAVT_API_KEY"` : "";
  const head = `curl -sSN ${at("v1/chat/completions")}${key} \\\n  -H 'Content-Type: application/json' -d @-`;
  const json = JSON.stringify(body, null, 2);
  if (file === null) return `${head} <<'JSON'\n${json}\nJSON\n`;
  // The shell fills the video in, so what else it would read in the text is quoted.
  const quoted = json.replace(/[\\$`]/g, "\\$&");
  const upload = `video=$(curl -sS ${at("v1/files")}${key} \\\n  -F purpose=user_data -F "file=@${plainName(file)}" | sed 's/.*"id": *"\\([^"]*\\)".*/\\1/')\n`;
  return `${upload}${head} <<JSON\n${quoted.replace(VIDEO, "$video")}\nJSON\n`;
}

/** Code that stands in a Python literal as it is. */
class Code {
  constructor(text) {
    this.text = text;
  }
}

function literal(value, depth) {
  if (value instanceof Code) return value.text;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const list = Array.isArray(value);
  const items = list
    ? value.map((item) => literal(item, depth + 1))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item, depth + 1)}`);
  const [open, close] = list ? "[]" : "{}";
  const line = `${open}${items.join(", ")}${close}`;
  if (line.length + 4 * depth < 88 && !line.includes("\n")) return line;
  const pad = "    ".repeat(depth + 1);
  return `${open}\n${items.map((item) => `${pad}${item},\n`).join("")}${"    ".repeat(depth)}${close}`;
}

function python(body, file, withKey) {
  const upload = file === null ? "" : `video = client.files.create(file=open(${JSON.stringify(plainName(file))}, "rb"), purpose="user_data")\n`;
  const place = (value) => {
    if (value === VIDEO) return new Code("video.id");
    if (Array.isArray(value)) return value.map(place);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, place(item)]));
  };
  const { paravt, ...known } = place(body);
  const fields = Object.entries({ ...known, extra_body: { paravt } });
  const lines = fields.map(([field, value]) => `    ${field}=${literal(value, 1)},\n`).join("");
  const key = withKey ? 'os.environ["PARAVT_API_KEY"]' : '"none"';
  return `${withKey ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(at("v1"))}, api_key=${key})
${upload}stream = client.chat.completions.create(
${lines})
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
print()
`;
}

/** The panel with both. */
function codePanel(id, texts) {
  const names = Object.keys(texts);
  const tabs = names.map((name, place) => h("button", {
    type: "button", role: "tab", id: `${id}-tab-${place}`, "aria-controls": `${id}-code-${place}`,
    "aria-selected": String(place === 0), tabindex: place === 0 ? "0" : "-1", onclick: () => show(place),
  }, name));
  const blocks = names.map((name, place) => h("pre", {
    role: "tabpanel", id: `${id}-code-${place}`, "aria-labelledby": `${id}-tab-${place}`, tabindex: "0", hidden: place !== 0,
  }, texts[name]));
  let shown = 0;
  function show(place) {
    shown = place;
    tabs.forEach((tab, other) => {
      tab.setAttribute("aria-selected", String(other === place));
      tab.tabIndex = other === place ? 0 : -1;
      blocks[other].hidden = other !== place;
    });
  }
  const list = h("div", { role: "tablist", "aria-label": "Language", class: "tab-list", onkeydown: (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show((shown + step + names.length) % names.length);
    tabs[shown].focus();
  } }, tabs);
  return h("details", { class: "panel code" }, h("summary", {}, "The same request in code"),
    h("div", { class: "tabs" }, list, copyButton(() => texts[names[shown]])), blocks);
}
