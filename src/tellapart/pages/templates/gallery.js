// Filters of the gallery. Without scripts all pictures are shown.
const filters = document.querySelector(".filters");
const grid = document.querySelector(".gallery");
const items = [...grid.children];
let kind = "";

function update() {
  const word = filters.querySelector("input").value.trim().toLowerCase();
  const place = (item) => Number(item.dataset[kind]);
  const chosen = items
    .filter((item) => (!kind || kind in item.dataset) && item.textContent.toLowerCase().includes(word))
    .sort((one, other) => (kind ? place(one) - place(other) : items.indexOf(one) - items.indexOf(other)));
  for (const item of items) item.hidden = !chosen.includes(item);
  grid.append(...chosen);
  for (const button of filters.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.dataset.kind === kind));
  }
  filters.querySelector("[role=status]").textContent = chosen.length === 1 ? "1 picture" : `${chosen.length} pictures`;
}

filters.hidden = false;
for (const button of filters.querySelectorAll("button")) {
  button.addEventListener("click", () => {
    kind = button.dataset.kind;
    update();
  });
}
filters.querySelector("input").addEventListener("input", update);
filters.querySelector("button:not(:disabled)").click();
