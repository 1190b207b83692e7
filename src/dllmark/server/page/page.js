// Starts the page: plays the example, asks what the server can do, and sets up the rest.

import { get, hasToken, useToken } from "./api.js";
import { setUpChecking } from "./check.js";
import { byId, copy, showError } from "./dom.js";
import { showExample } from "./example.js";
import { Stage } from "./stage.js";
import { aboutModel } from "./words.js";
import { setUpWriting } from "./write.js";

const stage = new Stage();
const readLink = () => new URLSearchParams(location.hash.slice(1));
const isStatic = document.documentElement.hasAttribute("data-static"); // exported: there is no server

async function start() {
  showError(byId("page-error"), null);
  let info;
  try {
    info = await get("v1/server");
  } catch (error) {
    if (error.status === 401) askForToken();
    else showError(byId("page-error"), error, start);
    return;
  }
  byId("token-form").hidden = true;
  const keys = info.keys.map((key) => `${key.id} (γ ${key.gamma})`).join(", ");
  byId("about").textContent = [info.model && `Model ${info.model}.`, keys && `Key ${keys}.`].filter(Boolean).join(" ");
  byId("about-model").textContent = info.upstream
    ? `Texts are written by ${info.upstream}, through the HTTP API only: this page checks them.`
    : aboutModel(info.model);
  byId("rate").textContent = `${100 * info.fpr} %`;
  for (const part of document.querySelectorAll("[data-private]")) part.hidden = info.public;
  stage.onCheck(setUpChecking(info));
  byId("write-form").hidden = !info.model;
  if (info.model) setUpWriting(info, stage, readLink());
  document.documentElement.dataset.ready = "true";
}

function askForToken() {
  const form = byId("token-form");
  if (hasToken()) showError(byId("page-error"), new Error("The server does not know this token."));
  useToken("");
  form.hidden = false;
  byId("token").focus();
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(byId("token").value.trim());
  start();
});
byId("copy-commands").addEventListener("click", (event) => copy(event.target, byId("commands").textContent));

addEventListener("hashchange", () => readLink().has("step") && showExample(stage, readLink()));
showExample(stage, readLink());
if (isStatic) {
  byId("about-model").textContent = aboutModel("embedded"); // which wrote the example
  for (const part of document.querySelectorAll("[data-served]")) part.hidden = true;
  byId("run").hidden = false;
} else start();
