// What is said to the server: OpenAI's requests, and what comes back.

/** The server's error, or ours about it. */
class ServerError extends Error {
  constructor(message, { status = null, code = null, param = null } = {}) {
    super(message);
    Object.assign(this, { status, code, param });
  }

  static read(body, status) {
    const error = body && typeof body === "object" ? body.error : null;
    if (error && typeof error.message === "string") {
      return new ServerError(error.message, { status, code: error.code, param: error.param });
    }
    return new ServerError(status ? `The server answered with status ${status}.` : "The server sent an error.", { status });
  }
}

const api = {
  key: "",

  headers() {
    return this.key ? { authorization: `Bearer ${this.key}` } : {};
  },

  async get(path) {
    const response = await reach(fetch(at(path), { headers: this.headers() }));
    const body = await response.json().catch(() => null);
    if (!response.ok || body === null) throw ServerError.read(body, response.status);
    return body;
  },

  /** The chunks of a streamed answer. Throws the error that the server ends it with. */
  async *ask(body, signal) {
    const headers = { "content-type": "application/json", ...this.headers() };
    const asking = fetch(at("v1/chat/completions"), { method: "POST", headers, body: JSON.stringify(body), signal });
    const response = await reach(asking);
    if (!response.ok) throw ServerError.read(await response.json().catch(() => null), response.status);
    for await (const data of serverSentEvents(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw ServerError.read(chunk, null);
      yield chunk;
    }
    throw new ServerError("The connection ended before the answer was complete.");
  },

  /** Uploads a file, `told` how much of it has left, and gives its id. */
  upload(file, signal, told) {
    return new Promise((resolve, reject) => {
      const form = new FormData();
      form.append("purpose", "user_data");
      form.append("file", file, file.name);
      // Only this old interface says how far an upload is.
      const request = new XMLHttpRequest();
      const stop = () => request.abort();
      signal.addEventListener("abort", stop, { once: true });
      request.open("POST", at("v1/files"));
      for (const [name, value] of Object.entries(this.headers())) request.setRequestHeader(name, value);
      request.responseType = "json";
      request.upload.onprogress = (event) => event.lengthComputable && told(event.loaded / event.total);
      request.onabort = () => reject(new DOMException("stopped", "AbortError"));
      request.onerror = () => reject(unreachable());
      request.onload = () => {
        const { status, response } = request;
        if (status >= 200 && status < 300 && typeof response?.id === "string") resolve(response.id);
        else reject(ServerError.read(response, status));
      };
      request.onloadend = () => signal.removeEventListener("abort", stop);
      if (signal.aborted) request.onabort();
      else request.send(form);
    });
  },
};

const unreachable = () => new ServerError("The server can’t be reached. Is it running?");

/** A fetch whose failure says something. */
async function reach(fetching) {
  try {
    return await fetching;
  } catch (error) {
    throw error.name === "AbortError" ? error : unreachable();
  }
}

/** The data of server-sent events (WHATWG HTML, section 9.2), comments left out. */
async function* serverSentEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const blocks = rest.split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) {
        const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
      }
    }
  } catch (error) {
    throw error.name === "AbortError" ? error : new ServerError("The connection broke before the answer was complete.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
