// Talk to the service: token, plain errors, and another try when the server is busy.

const TOKEN = "tellapart-token";
const TRIES = 8;
const LONGEST_WAIT = 30;
const MOST_THUMBNAILS = 400;

/** What the page listens to: "busy" (detail: seconds), "token" (the server wants one). */
export const events = new EventTarget();

/** An answer that is an error; `message` is a plain sentence. */
export class ApiError extends Error {
  constructor(status, { code = "unknown", message = `The server answered with error ${status}.`, ids = null } = {}) {
    super(message);
    Object.assign(this, { status, code, ids });
  }
}

let token = null;

/** Take the token out of the address (#token=…), where others could see it, and keep it while this tab is open. */
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    setToken(given);
    history.replaceState(null, "", location.pathname + location.search);
  } else token = stored();
}

export function setToken(value) {
  token = value;
  try {
    sessionStorage.setItem(TOKEN, value);
  } catch {
    // Storage can be switched off: then the token lasts until the page is loaded again.
  }
}

function stored() {
  try {
    return sessionStorage.getItem(TOKEN);
  } catch {
    return null;
  }
}

const headers = () => (token ? { Authorization: `Bearer ${token}` } : {});

/** Seconds to wait by a Retry-After header (a number or a date); 2 if there is none. */
export function retryAfter(header, now = Date.now()) {
  const text = header ?? "";
  const seconds = /^\s*\d+\s*$/.test(text) ? Number(text) : (Date.parse(text) - now) / 1000;
  return Number.isFinite(seconds) ? Math.min(LONGEST_WAIT, Math.max(0, seconds)) : 2;
}

const wait = (seconds, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });

async function failure(response) {
  const body = await response.json().catch(() => ({}));
  return new ApiError(response.status, body.error ?? {});
}

/** One request; busy servers are asked again after the time they say. */
async function ask(path, options) {
  for (let attempt = 1; ; attempt++) {
    let response;
    try {
      response = await fetch(path, { ...options, headers: { ...options.headers, ...headers() } });
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new ApiError(0, {
        code: "unreachable",
        message: "The server does not answer. Check that tellapart serve is still running, then try again.",
      });
    }
    if (response.ok) return response;
    if ((response.status === 429 || response.status === 503) && attempt < TRIES) {
      const seconds = retryAfter(response.headers.get("Retry-After"));
      events.dispatchEvent(new CustomEvent("busy", { detail: seconds }));
      await wait(seconds, options.signal);
      continue;
    }
    if (response.status === 401) events.dispatchEvent(new Event("token"));
    throw await failure(response);
  }
}

export const get = async (path) => (await ask(path, {})).json();

export async function post(path, body, signal) {
  const options = body instanceof FormData ? { body } : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  return (await ask(path, { method: "POST", signal, ...options })).json();
}

const thumbnails = new Map();

/** Show a thumbnail of the collection. An `img` cannot send a token: with one, the picture is fetched. */
export async function showThumbnail(image, path) {
  // Only this server's own pictures are shown, also if an answer should name others.
  if (!/^\/api\/collection\/[^/]+\/thumbnail$/.test(path ?? "")) return;
  const relative = path.slice(1);
  if (!token) {
    image.src = relative;
    return;
  }
  if (!thumbnails.has(relative)) {
    thumbnails.set(relative, ask(relative, {}).then(async (answer) => URL.createObjectURL(await answer.blob())));
    if (thumbnails.size > MOST_THUMBNAILS) {
      const [oldest, address] = thumbnails.entries().next().value;
      thumbnails.delete(oldest);
      address.then(URL.revokeObjectURL, () => {});
    }
  }
  try {
    image.src = await thumbnails.get(relative);
  } catch {
    thumbnails.delete(relative);
  }
}
