// The page at /docs: what openapi.json says, readable without the internet.
"use strict";

function make(tag, className, ...children) {
  const element = document.createElement(tag);
  element.className = className;
  element.append(...children);
  return element;
}

let schemas = {};

const fieldsOf = (schema) => Object.entries(schemas[schema.$ref.split("/").pop()].properties);

function typeOf(schema) {
  if (schema.$ref) return `{${fieldsOf(schema).map(([name]) => name).join(", ")}}`;
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  return schema.type === "array" ? `[${typeOf(schema.items)}]` : schema.type;
}

function table(heads, rows) {
  const head = make("tr", "", ...heads.map((text) => make("th", "", text)));
  const body = rows.map((cells) => make("tr", "", ...cells.map((cell) => make("td", "", cell))));
  return make("div", "wide", make("table", "", head, ...body));
}

const formOf = (operation) => operation.requestBody?.content["multipart/form-data"].schema;

function curl(method, path, operation) {
  const words = ["curl"];
  if (method !== "get") words.push(`-X ${method.toUpperCase()}`);
  const form = formOf(operation);
  if (form) words.push("-F picture=@a.png");
  if (path === "/verify") words.push("-F picture=@b.png");
  if (form?.required.includes("name")) words.push("-F name=…");
  if (operation.security) words.push("-H 'Authorization: Bearer …'");
  const needed = (operation.parameters || []).filter((parameter) => parameter.required);
  const query = needed.map((parameter) => `${parameter.name}=…`).join("&");
  return `${words.join(" ")} '${new URL(path.slice(1), location.href)}${query ? `?${query}` : ""}'`;
}

function show(method, path, operation) {
  const section = make("section", "", make("h2", "", make("code", "", `${method.toUpperCase()} ${path}`)));
  section.append(make("p", "", operation.description || operation.summary), make("pre", "", curl(method, path, operation)));
  const form = formOf(operation);
  if (form) {
    section.append(table(["in the form", "type", ""], Object.entries(form.properties).map(([name, field]) =>
      [name, name === "picture" ? "files" : typeOf(field), form.required.includes(name) ? "needed" : ""])));
  }
  const parameters = operation.parameters || [];
  if (parameters.length) {
    section.append(table(["in the address", "type", "default", ""], parameters.map(({ name, schema, required, description }) =>
      [name, typeOf(schema), required ? "needed" : String(schema.default ?? "none"), description || ""])));
  }
  const good = Object.values(operation.responses)[0];
  const schema = good.content?.["application/json"]?.schema;
  if (schema?.$ref) {
    section.append(make("p", "faint", "answers"), table(["field", "type", ""], fieldsOf(schema).map(([name, field]) =>
      [name, typeOf(field), field.description || ""])));
  }
  return section;
}

async function begin() {
  const { paths, components } = await (await fetch("openapi.json")).json();
  schemas = components.schemas;
  for (const [path, methods] of Object.entries(paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      document.getElementById("paths").append(show(method, path, operation));
    }
  }
}

begin();
