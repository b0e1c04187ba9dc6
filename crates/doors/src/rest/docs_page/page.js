// Shows the operations of /openapi.json. Everything is made with createElement and text nodes, so nothing in
// the description can become markup.

const api = await (await fetch("/openapi.json")).json();
const resolve = (it) =>
  it?.$ref ? it.$ref.slice(2).split("/").reduce((at, key) => at?.[key.replaceAll("~1", "/")], api) : it;

function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== ""));
  return element;
}

// `code` in prose, and nothing else.
const prose = (text = "") => text.split("`").map((part, at) => (at % 2 ? el("code", {}, part) : part));
const paragraphs = (text = "") => text.split(/\n\s*\n/).filter(Boolean).map((part) => el("p", {}, prose(part)));

const nameOf = (schema) => schema?.$ref?.split("/").pop();

// A schema without "or null": a field that may be left out says so already.
function plain(schema) {
  const options = (schema?.oneOf ?? schema?.anyOf)?.filter((option) => option.type !== "null");
  return options?.length === 1 ? options[0] : schema;
}

function typeOf(raw) {
  const schema = plain(raw);
  if (!schema) return "";
  if (schema.$ref) {
    const target = resolve(schema);
    return target?.type === "object" || target?.allOf ? nameOf(schema) : typeOf(target);
  }
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  const options = schema.oneOf ?? schema.anyOf;
  if (options) return [...new Set(options.map(typeOf))].join(" | ");
  const type = [schema.type].flat().filter((one) => one && one !== "null").join(" | ");
  if (type === "array") return `${typeOf(schema.items)}[]`;
  if (type === "object" && schema.additionalProperties) return `{ name: ${typeOf(schema.additionalProperties)} }`;
  return [type || "any", schema.format && `(${schema.format})`].filter(Boolean).join(" ");
}

function bounds(schema) {
  const words = { minimum: "≥", exclusiveMinimum: ">", maximum: "≤", minLength: "length ≥", maxLength: "length ≤", pattern: "" };
  const found = Object.entries(words).filter(([key]) => schema[key] !== undefined);
  const text = found.map(([key, word]) => `${word} ${schema[key]}`.trim()).join(", ");
  return schema.default === undefined ? text : [text, `default ${JSON.stringify(schema.default)}`].filter(Boolean).join(", ");
}

// The fields of an object, with those of all its parts.
function fieldsOf(schema) {
  const target = resolve(plain(schema)) ?? {};
  const parts = [...(target.allOf ?? []), ...(target.oneOf ?? target.anyOf ?? [])].map(fieldsOf);
  const own = Object.entries(target.properties ?? {}).map(([name, field]) => ({ name, field, must: target.required?.includes(name) }));
  const seen = new Set();
  return [...own, ...parts.flat()].filter(({ name }) => !seen.has(name) && seen.add(name));
}

function inner(schema) {
  const target = plain(schema);
  return resolve(target)?.type === "array" ? resolve(target).items : target;
}

function row(name, field, must, depth) {
  const target = resolve(plain(field)) ?? {};
  const text = field.description ?? target.description ?? "";
  const nested = depth < 4 && fieldsOf(inner(field)).length > 0;
  return el("tr", {},
    el("td", {}, el("code", {}, name), must ? el("span", { class: "must" }, " required") : ""),
    el("td", {},
      el("span", { class: "type" }, typeOf(field), " ", el("small", {}, bounds({ ...target, ...field }))),
      text ? el("div", {}, prose(text)) : "",
      nested ? more("fields", () => table(inner(field), depth + 1)) : ""));
}

const table = (schema, depth = 0) =>
  el("table", {}, fieldsOf(schema).map(({ name, field, must }) => row(name, field, must, depth)));

// Filled when it is first opened: the whole page would be too much at once.
function more(title, fill) {
  const body = el("div");
  const details = el("details", { class: "more" }, el("summary", {}, title), body);
  details.addEventListener("toggle", () => details.open && !body.firstChild && body.append(fill()), { once: false });
  return details;
}

function example(schema, depth = 0) {
  const target = resolve(plain(schema)) ?? {};
  if (target.example !== undefined) return target.example;
  if (target.enum) return target.enum[0];
  const chosen = fieldsOf(target).filter(({ field, must }) => must || (field.example ?? resolve(plain(field))?.example) !== undefined);
  if (chosen.length && depth < 3)
    return Object.fromEntries(chosen.map(({ name, field }) => [name, field.example ?? example(field, depth + 1)]));
  const type = [target.type].flat()[0];
  return { string: "…", integer: 1, number: 1, boolean: true, array: [] }[type] ?? {};
}

const isPublic = (operation) => operation.security?.length === 1 && !Object.keys(operation.security[0]).length;

function curl(method, path, operation) {
  const lines = [`curl ${method === "get" ? "" : `-X ${method.toUpperCase()} `}${location.origin}${path.replace(/\{(\w+)\}/g, (_, name) => "$" + name.toUpperCase())}`];
  if (!isPublic(operation)) lines.push(`-H "Authorization: Bearer $SANDKEEP_API_KEY"`);
  const [media, content] = Object.entries(operation.requestBody?.content ?? {})[0] ?? [];
  if (media?.includes("json"))
    lines.push(`-H 'Content-Type: ${media}'`, `-d '${JSON.stringify(content.example ?? example(content.schema)).replaceAll("'", "'\\''")}'`);
  else if (media) lines.push(`-H 'Content-Type: ${media}'`, "--data-binary @FILE");
  return lines.join(" \\\n  ");
}

function copyable(text) {
  const button = el("button", { class: "copy", type: "button" }, "copy");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
  });
  return el("pre", {}, button, text);
}

function answers(operation) {
  return Object.entries(operation.responses).map(([status, raw]) => {
    const response = resolve(raw);
    const contents = Object.entries(response.content ?? {});
    const parts = contents.map(([media, { schema }]) => {
      const about = [el("code", {}, media), " ", el("span", { class: "type" }, typeOf(schema))];
      return el("div", {}, about, fieldsOf(inner(schema)).length ? more("fields", () => table(inner(schema))) : "");
    });
    const headers = Object.keys(response.headers ?? {}).map((name) => el("code", {}, name));
    return el("tr", {},
      el("td", {}, el("code", {}, status)),
      el("td", {}, prose(response.description), parts, headers.length ? el("div", { class: "note" }, "headers ", headers) : ""));
  });
}

function body(method, path, operation, shared) {
  const parameters = [...shared, ...(operation.parameters ?? [])].map(resolve);
  const contents = Object.entries(operation.requestBody?.content ?? {});
  return el("div", {},
    paragraphs(operation.description),
    isPublic(operation) ? el("p", { class: "note" }, "Needs no credentials.") : "",
    parameters.length ? [el("h4", {}, "Parameters"), el("table", {}, parameters.map((p) =>
      row(p.name, { ...p.schema, description: p.description ?? p.schema?.description }, p.required, 4)))] : "",
    contents.map(([media, { schema }]) => [el("h4", {}, "Body ", el("code", {}, media)), table(schema)]),
    el("h4", {}, "Try"), copyable(curl(method, path, operation)),
    el("h4", {}, "Answers"), el("table", {}, answers(operation)));
}

const METHODS = ["get", "post", "put", "patch", "delete"];
const all = Object.entries(api.paths).flatMap(([path, item]) =>
  METHODS.filter((method) => item[method]).map((method) => ({ method, path, operation: item[method], shared: item.parameters ?? [] })));

const main = document.getElementById("main");
const toc = document.getElementById("toc");
document.getElementById("version").textContent = `API ${api.info.version} · OpenAPI ${api.openapi}`;
document.getElementById("about").append(...prose(api.info.description));
const schemes = Object.keys(api.components?.securitySchemes ?? {});
document.getElementById("auth").textContent = schemes.length ? ` · credentials: ${schemes.join(", ")}` : "";

main.replaceChildren();
for (const tag of api.tags ?? []) {
  const mine = all.filter(({ operation }) => operation.tags?.[0] === tag.name);
  const list = el("ul");
  main.append(el("h2", { id: `tag-${tag.name}` }, tag.name), el("p", { class: "note" }, prose(tag.description)));
  toc.append(el("h3", {}, tag.name), list);
  for (const { method, path, operation, shared } of mine) {
    const badge = () => el("span", { class: `method ${method}` }, method);
    const summary = el("summary", {}, badge(), el("code", {}, path), el("span", { class: "what" }, prose(operation.summary)));
    const details = el("details", { class: "op", id: operation.operationId }, summary);
    details.addEventListener("toggle", () => details.open && !details.querySelector("div") && details.append(body(method, path, operation, shared)));
    main.append(details);
    const entry = el("li", { "data-text": `${method} ${path} ${operation.summary} ${operation.operationId}`.toLowerCase() },
      el("a", { href: `#${operation.operationId}` }, badge(), path));
    list.append(entry);
  }
}

function open() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target?.matches("details")) {
    target.open = true;
    target.querySelector("summary").focus();
    target.scrollIntoView();
  }
}
addEventListener("hashchange", open);
open();

const find = document.getElementById("find");
find.addEventListener("input", () => {
  const words = find.value.toLowerCase().split(/\s+/);
  for (const entry of toc.querySelectorAll("li")) {
    entry.hidden = !words.every((word) => entry.dataset.text.includes(word));
    document.getElementById(entry.querySelector("a").hash.slice(1)).hidden = entry.hidden;
  }
});
addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== find) {
    event.preventDefault();
    find.focus();
  }
});
