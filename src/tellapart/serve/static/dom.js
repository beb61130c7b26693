// Small helpers for the document. Text is only ever set as text: no markup is made from strings.

/** The element with this id. */
export const at = (id) => document.getElementById(id);

/**
 * A new element.
 * @param {string} tag
 * @param {Object} attributes `on…` are listeners; null and false are left out; true is an attribute without a value.
 * @param {...(Node|string|null)} children
 */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Call `run` when no further call has come for `delay` milliseconds. */
export function debounced(run, delay) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...values), delay);
  };
}

/**
 * Only the newest of several tasks counts: starting one aborts the one before, and a late answer is dropped.
 * `newest(task)` resolves to the task's value, or to undefined if another was started meanwhile.
 */
export function newestOnly() {
  let controller = new AbortController();
  const newest = async (task) => {
    controller.abort();
    const mine = (controller = new AbortController());
    try {
      const value = await task(mine.signal);
      return mine.signal.aborted ? undefined : value;
    } catch (error) {
      if (mine.signal.aborted) return undefined;
      throw error;
    }
  };
  newest.stop = () => controller.abort();
  return newest;
}
