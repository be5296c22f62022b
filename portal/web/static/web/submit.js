// The submit page: which side was edited last, when to ask the server for the other one, which workload's fields show.
"use strict";

const form = document.getElementById("submit-form");
let timer = 0;

function showKind() {
  const kind = form.querySelector("[name=kind]:checked")?.value;
  for (const part of form.querySelectorAll("[data-kind]")) part.hidden = part.dataset.kind !== kind;
}

form?.addEventListener("input", (event) => {
  document.getElementById("edited").value = event.target.id === "yaml" ? "yaml" : "form";
  if (event.target.name === "kind") showKind();
  clearTimeout(timer);
  timer = setTimeout(() => htmx.trigger(form, "sync"), 300);
});
// A submission sends what stands there now; an answer to an earlier edit must not arrive in between.
form?.addEventListener("submit", () => { clearTimeout(timer); htmx.trigger(form, "htmx:abort"); });
