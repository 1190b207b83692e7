// Lists the operations of the OpenAPI schema, with the fields of their bodies.

import { get } from "./api.js";
import { byId, element } from "./dom.js";

function section(schema, path, method, operation) {
  const body = operation.requestBody?.content?.["application/json"]?.schema;
  return element(
    "section",
    { className: "card operation" },
    element("h2", {}, element("code", { textContent: `${method.toUpperCase()} ${path}` })),
    element("p", { textContent: (operation.description ?? operation.summary).replaceAll("`", "") }),
    ...(body ? [fields(schema, resolve(schema, body))] : []),
  );
}

function fields(schema, body) {
  const rows = Object.entries(body.properties ?? {}).map(([name, field]) =>
    element(
      "tr",
      {},
      element("td", {}, element("code", { textContent: name })),
      element("td", { textContent: kind(schema, field) }),
      element("td", { textContent: body.required?.includes(name) ? "needed" : showDefault(field) }),
      element("td", { textContent: field.description ?? "" }),
    ),
  );
  const heads = ["field", "kind", "if left out", "about"].map((textContent) => element("th", { textContent }));
  return element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
}

function showDefault(field) {
  return field.default === undefined || field.default === null ? "" : JSON.stringify(field.default);
}

function kind(schema, field) {
  if (field.$ref) return kind(schema, resolve(schema, field));
  if (field.anyOf) return field.anyOf.map((one) => kind(schema, one)).filter((name) => name !== "null").join(" or ");
  if (field.enum) return field.enum.map((value) => JSON.stringify(value)).join(", ");
  if (field.type === "array") return `list of ${kind(schema, field.items)}`;
  return field.const ?? field.type ?? "any";
}

function resolve(schema, part) {
  return part.$ref ? schema.components.schemas[part.$ref.split("/").pop()] : part;
}

try {
  const schema = await get("openapi.json");
  for (const [path, methods] of Object.entries(schema.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      byId("operations").append(section(schema, path, method, operation));
    }
  }
} catch (error) {
  byId("page-error").textContent = error.message;
}
