// The judge's page: shows a rater's pictures one by one and sends every answer at once.
// An answer is kept in the browser until the server has confirmed it, so that no closed tab or stopped server loses it.
"use strict";

const CHOICES = [["left", "Left"], ["tie", "Equal"], ["right", "Right"]];
const RETRY_SECONDS = 3;
const find = (id) => document.getElementById(id);

const link = new URLSearchParams(location.hash.slice(1)); // #token=…&rater=…
let rater = link.get("rater"); // a key, or the name that was typed
let tasks = []; // {item, left, right, answers: {question: choice}}
let questions = {}; // name -> the question
let place = -1; // of the task that is shown
let pending = new Map(); // "item question" -> {item, question, choice} that the server has not confirmed
let store = null; // key of `pending` in the browser's storage
let sending = false;
let retry = null;
const pictures = new Map(); // item -> promise of an object address

// --- the server --------------------------------------------------------------------------------------------------

async function call(path, body) {
  const headers = {};
  if (link.get("token")) headers.Authorization = `Bearer ${link.get("token")}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      keepalive: body !== undefined, // goes on when the tab is closed
    });
  } catch {
    throw Object.assign(new Error("The server does not answer."), { passing: true });
  }
  if (answer.ok) return answer;
  let message = `The server answered with an error (${answer.status}).`;
  try {
    message = sentence((await answer.json()).error.message);
  } catch { /* not JSON */ }
  throw Object.assign(new Error(message), { passing: answer.status >= 500 || answer.status === 429 });
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (text.endsWith(".") ? "" : ".");
}

// --- answers -----------------------------------------------------------------------------------------------------

function remember() {
  document.body.dataset.pending = pending.size;
  try {
    if (pending.size) localStorage.setItem(store, JSON.stringify([...pending.values()]));
    else localStorage.removeItem(store);
  } catch { /* no storage: the page still retries while it is open */ }
}

function recall() {
  try {
    for (const one of JSON.parse(localStorage.getItem(store) || "[]")) {
      const task = tasks.find((other) => other.item === one.item);
      if (!task || !(one.question in questions) || !CHOICES.some(([value]) => value === one.choice)) continue;
      pending.set(`${one.item} ${one.question}`, one);
      task.answers[one.question] = one.choice;
    }
  } catch { /* nothing usable is stored */ }
}

function answer(question, choice) {
  const task = tasks[place];
  task.answers[question] = choice;
  pending.set(`${task.item} ${question}`, { item: task.item, question, choice });
  remember();
  show_progress();
  send();
}

async function send() {
  if (sending) return;
  sending = true;
  clearTimeout(retry);
  while (pending.size) {
    const [key, one] = pending.entries().next().value;
    try {
      await call("/api/answers", { rater, ...one });
      if (pending.get(key) === one) pending.delete(key); // else it was changed meanwhile
      remember();
      find("problem").textContent = "";
    } catch (error) {
      const answers = pending.size === 1 ? "1 answer is" : `${pending.size} answers are`;
      const next = error.passing ? "Trying again; keep this page open." : "Load the page again.";
      find("problem").textContent = `${error.message} ${answers} not stored yet. ${next}`;
      if (error.passing) retry = setTimeout(send, 1000 * RETRY_SECONDS);
      break;
    }
  }
  sending = false;
  show_stored();
}

// --- the page ----------------------------------------------------------------------------------------------------

const is_done = (task) => Object.keys(questions).every((name) => name in task.answers);
const count_done = () => tasks.filter(is_done).length;

function show_section(id) {
  for (const one of ["welcome", "judge", "done"]) find(one).hidden = one !== id;
}

function show_stored() {
  const task = tasks[place];
  const some = task && Object.keys(task.answers).length > 0;
  find("status").textContent = !pending.size && some && find("done").hidden ? "Your answers are stored." : "";
  if (!find("done").hidden) show_end();
}

function show_progress() {
  const done = count_done();
  find("progress").max = tasks.length;
  find("progress").value = done;
  find("progress").textContent = `${done} of ${tasks.length}`;
}

function make_questions() {
  const fields = find("fields");
  fields.replaceChildren();
  for (const [name, text] of Object.entries(questions)) {
    const group = document.createElement("fieldset");
    group.dataset.question = name;
    const legend = document.createElement("legend");
    legend.textContent = text;
    const choices = document.createElement("div");
    choices.className = "choices";
    for (const [value, shown] of CHOICES) {
      const label = document.createElement("label");
      const input = document.createElement("input");
      Object.assign(input, { type: "radio", name, value });
      input.addEventListener("change", () => answer(name, value));
      label.append(input, shown);
      choices.append(label);
    }
    group.append(legend, choices);
    fields.append(group);
  }
}

function show_task(number) {
  place = number;
  const task = tasks[place];
  show_section("judge");
  find("place").textContent = `Picture ${place + 1} of ${tasks.length}`;
  find("left").textContent = task.left;
  find("right").textContent = task.right;
  for (const input of find("fields").querySelectorAll("input")) {
    input.checked = task.answers[input.name] === input.value;
  }
  find("back").disabled = place === 0;
  show_progress();
  show_stored();
  show_picture(task.item);
  const next = next_open();
  if (next !== null) load_picture(tasks[next].item).catch(() => {});
  scrollTo(0, 0);
  find("place").focus({ preventScroll: true });
}

async function show_picture(item) {
  const image = find("picture");
  const note = find("no-picture");
  image.hidden = true;
  note.hidden = false;
  note.textContent = "The picture is loading …";
  try {
    const address = await load_picture(item);
    if (tasks[place].item !== item) return;
    image.src = address;
    image.hidden = false;
    note.hidden = true;
  } catch (error) {
    if (tasks[place].item === item) note.textContent = error.message;
  }
}

function load_picture(item) {
  if (!pictures.has(item)) {
    const made = call(`/api/pictures/${item}`).then((got) => got.blob()).then((blob) => URL.createObjectURL(blob));
    made.catch(() => pictures.delete(item)); // so that it is tried again
    pictures.set(item, made);
    for (const old of pictures.keys()) { // keep a few
      if (pictures.size <= 8) break;
      pictures.get(old).then(URL.revokeObjectURL, () => {});
      pictures.delete(old);
    }
  }
  return pictures.get(item);
}

// The next task that is not done: after the one that is shown, else from the beginning; null if all are done.
function next_open() {
  const order = [...tasks.keys()].filter((one) => one > place).concat([...tasks.keys()].filter((one) => one < place));
  const found = order.find((one) => !is_done(tasks[one]));
  return found === undefined ? null : found;
}

function go_on() {
  const open = open_question();
  if (open !== null) {
    find("status").textContent = "Answer this question too, then go on.";
    focus_question(open);
    return;
  }
  const next = next_open();
  if (next === null) end();
  else show_task(next);
}

function go_back() {
  if (!find("done").hidden) show_task(tasks.length - 1);
  else if (place > 0) show_task(place - 1);
}

function end() {
  show_section("done");
  show_end();
  find("done-heading").focus();
}

function show_end() {
  find("status").textContent = "";
  find("done-text").textContent = pending.size
    ? "You have judged all pictures. The last answers are not stored yet: keep this page open."
    : `You have judged all ${tasks.length} pictures, and all your answers are stored. You can close this page.`;
}

const groups = () => [...find("fields").children];
const is_open = (group) => !(group.dataset.question in tasks[place].answers);

function open_question() {
  return groups().find(is_open) || null;
}

function focus_question(group) {
  (group.querySelector("input:checked") || group.querySelector("input")).focus();
}

// --- the keyboard ------------------------------------------------------------------------------------------------

function press(event) {
  if (find("judge").hidden || event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
  const target = event.target;
  const choice = ["1", "2", "3"].indexOf(event.key);
  if (choice >= 0 && find("digits").checked && !event.repeat) {
    const group = target.closest("fieldset") || open_question();
    if (group === null) return;
    event.preventDefault();
    const input = group.querySelectorAll("input")[choice];
    input.checked = true;
    answer(input.name, input.value);
    const following = groups()[groups().indexOf(group) + 1];
    if (following) focus_question(following);
    else find("next").focus();
  } else if (event.key === "Enter" && event.shiftKey) {
    event.preventDefault();
    go_back();
  } else if (event.key === "Enter" && !event.repeat && !target.closest("button, summary")) {
    event.preventDefault();
    go_on();
  } else if (event.key.startsWith("Arrow") && target === find("place") && event.key !== "ArrowUp") {
    event.preventDefault();
    focus_question(open_question() || groups()[0]);
  }
}

// --- begin -------------------------------------------------------------------------------------------------------

async function begin() {
  const got = await (await call("/api/start", { rater })).json();
  ({ tasks, questions } = got);
  store = `tellapart-judge ${got.trial} ${got.rater.toLowerCase()}`;
  recall();
  find("who").textContent = `You are ${got.rater}`;
  find("who").hidden = false;
  make_questions();
  place = -1;
  const open = next_open();
  if (open === null) end();
  else show_task(open);
  send();
}

// Another tab of the same rater may have answered meanwhile.
async function refresh() {
  if (document.hidden || !tasks.length || pending.size) return;
  try {
    const got = await (await call("/api/start", { rater })).json();
    if (pending.size || got.tasks.length !== tasks.length) return;
    got.tasks.forEach((task, number) => { tasks[number].answers = task.answers; });
    if (place < 0 || find("judge").hidden) return;
    for (const input of find("fields").querySelectorAll("input")) {
      input.checked = tasks[place].answers[input.name] === input.value;
    }
    show_progress();
  } catch { /* the next answer tells */ }
}

async function try_to_begin() {
  find("problem").textContent = "";
  try {
    await begin();
  } catch (error) {
    find("problem").textContent = error.message;
  }
}

async function welcome() {
  find("start").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!find("ask-name").hidden) {
      rater = find("name").value.trim();
      try {
        localStorage.setItem("tellapart-judge name", rater);
        sessionStorage.setItem("tellapart-judge name", rater);
      } catch { /* it is typed again next time */ }
    }
    try_to_begin();
  });
  find("questions").addEventListener("submit", (event) => {
    event.preventDefault();
    go_on();
  });
  find("back").addEventListener("click", go_back);
  find("review").addEventListener("click", () => show_task(0));
  document.addEventListener("keydown", press);
  document.addEventListener("visibilitychange", refresh);
  try {
    const { links } = await (await call("/api/about")).json();
    if (links && !rater) throw new Error("This page needs your own link. Ask for it, and open it as it is.");
    find("ask-name").hidden = Boolean(rater);
    find("name").required = !rater;
  } catch (error) {
    find("problem").textContent = error.message;
    return;
  }
  let last = null;
  try {
    last = sessionStorage.getItem("tellapart-judge name");
    find("name").value = localStorage.getItem("tellapart-judge name") || "";
  } catch { /* no storage */ }
  show_section("welcome");
  if (!rater && last) { // the page was loaded again
    rater = last;
    await try_to_begin();
  }
}

welcome();
