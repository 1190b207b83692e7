// Starts the page: asks what the server can do, and sets up both sides.

import { get, useToken } from "./api.js";
import { setUpChecking } from "./check.js";
import { byId } from "./dom.js";
import { setUpWriting } from "./write.js";

async function start() {
  byId("page-error").textContent = "";
  let info;
  try {
    info = await get("/v1/server");
  } catch (error) {
    if (error.status === 401) askForToken();
    else byId("page-error").textContent = error.message;
    return;
  }
  byId("token-form").hidden = true;
  const keys = info.keys.map((key) => `${key.id} (γ ${key.gamma})`).join(", ");
  const about = [info.model && `Model ${info.model}.`, keys && `Key ${keys}.`]; // the public is told no keys
  if (info.upstream) about.push(`Texts are written by ${info.upstream}, through the HTTP API only: this page checks them.`);
  byId("about").textContent = about.filter(Boolean).join(" ");
  byId("rate").textContent = `${100 * info.fpr} %`;
  for (const part of document.querySelectorAll("[data-private]")) part.hidden = info.public;
  const checkText = setUpChecking(info);
  byId("write").hidden = !info.model;
  if (info.model) setUpWriting(info, checkText);
  document.documentElement.dataset.ready = "true";
}

function askForToken() {
  const form = byId("token-form");
  if (!form.hidden) byId("page-error").textContent = "The server does not know this token.";
  form.hidden = false;
  byId("token").focus();
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(byId("token").value.trim());
  start();
});

start();
