// Shows `openapi.json`: routes, parameters, schemas. Schemas open when they are asked for: they hold each other.

let spec = null;

/** A description, with its `code` as such. */
function prose(text) {
  if (!text) return null;
  // Line breaks of the source within a paragraph are none of the reader's.
  const flowing = text.replace(/([^\n])\n(?!\n)/g, "$1 ");
  return h("p", { class: "prose" }, flowing.split("`").map((piece, place) => (place % 2 ? h("code", {}, piece) : piece)));
}

const nameOf = (reference) => reference.split("/").pop();

function resolve(schema) {
  return schema?.$ref ? spec.components.schemas[nameOf(schema.$ref)] ?? {} : schema ?? {};
}

/** A type in few words. */
function kind(schema) {
  if (!schema) return "anything";
  if (schema.$ref) return nameOf(schema.$ref);
  const choices = schema.oneOf ?? schema.anyOf;
  if (choices) return choices.map(kind).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.allOf) return schema.title ?? "object";
  const types = [schema.type ?? "anything"].flat();
  return types.map((type) => (type === "array" ? `list of ${kind(schema.items)}` : type)).join(" | ");
}

/** Bounds in words. */
function bounds(schema) {
  const words = [];
  const add = (name, word) => schema[name] !== undefined && words.push(`${word} ${schema[name]}`);
  add("minimum", "at least");
  add("exclusiveMinimum", "above");
  add("maximum", "at most");
  add("minItems", "at least, items:");
  add("maxItems", "at most, items:");
  add("maxLength", "at most, characters:");
  return words;
}

/** What a reader may open further: named schemas within this one. */
function inner(schema) {
  if (!schema) return [];
  if (schema.$ref) return [schema];
  return [...(schema.oneOf ?? []), ...(schema.anyOf ?? []), ...(schema.items ? [schema.items] : [])].flatMap(inner)
    .filter(({ $ref }, place, all) => all.findIndex((other) => other.$ref === $ref) === place);
}

/** Everything a schema says below its name. */
function body(schema) {
  const whole = resolve(schema);
  const parts = [];
  for (const part of whole.allOf ?? []) parts.push(...(part.$ref ? [folded(part)] : body(part)));
  const fields = Object.entries(whole.properties ?? {});
  if (fields.length) {
    parts.push(h("ul", { class: "fields-list" }, fields.map(([name, field]) => {
      const nested = inner(field);
      const described = field.description ?? nested.map((part) => part.description ?? resolve(part).description).find(Boolean);
      return h("li", {}, h("div", {}, h("span", { class: "name" }, name), " ",
        h("span", { class: "kind" }, [kind(field), ...bounds(field)].join(", ")), " ",
        whole.required?.includes(name) ? h("span", { class: "must" }, "required") : null),
      prose(described), nested.map((part) => folded(part)));
    })));
  }
  const choices = whole.oneOf ?? whole.anyOf ?? [];
  for (const choice of choices) {
    if (choice.$ref) parts.push(folded(choice));
    else parts.push(choice.properties || choice.allOf
      ? h("details", { class: "shape" }, h("summary", {}, choice.title ?? tag(choice) ?? kind(choice)), prose(choice.description), body(choice))
      : h("p", { class: "prose" }, h("code", {}, kind(choice)), choice.description ? ` ${choice.description}` : ""));
  }
  if (!parts.length) parts.push(h("p", { class: "prose" }, h("code", {}, kind(whole))));
  return parts;
}

/** The constant field that tells one choice from another, where there is one. */
function tag(schema) {
  const pieces = [schema, ...(schema.allOf ?? [])].map(resolve);
  for (const { properties = {} } of pieces) {
    for (const field of Object.values(properties)) if (field.enum?.length === 1) return field.enum[0];
  }
  return null;
}

/** A named schema, filled when it is opened. */
function folded(schema, open = false) {
  const details = h("details", { class: "shape" }, h("summary", {}, h("span", {}, kind(schema))));
  const fill = () => {
    if (details.childElementCount === 1) details.append(...[prose(resolve(schema).description), ...body(schema)].filter(Boolean));
  };
  details.addEventListener("toggle", () => details.open && fill());
  if (open) {
    fill();
    details.open = true;
  }
  return details;
}

function contents(content, open) {
  return Object.entries(content ?? {}).map(([type, { schema }]) => h("div", {}, h("p", { class: "hint" }, h("code", {}, type)),
    schema?.$ref || schema?.properties ? folded(schema, open) : h("p", { class: "hint" }, kind(schema))));
}

function operation(path, method, told) {
  const id = `${method}-${path}`.replace(/[^\w]+/g, "-");
  const parameters = told.parameters ?? [];
  const words = [told.summary, told.description].filter(Boolean).join("\n\n");
  return { id, root: h("section", { class: "operation", id, "aria-labelledby": `${id}-title` },
    h("h3", { id: `${id}-title` }, h("span", { class: "method" }, method.toUpperCase()), path), prose(words),
    parameters.length ? [h("h4", {}, "Parameters"), h("ul", { class: "fields-list" }, parameters.map((parameter) => h("li", {},
      h("div", {}, h("span", { class: "name" }, parameter.name), " ",
        h("span", { class: "kind" }, `${kind(parameter.schema)}, in the ${parameter.in}`), " ",
        parameter.required ? h("span", { class: "must" }, "required") : null), prose(parameter.description))))] : null,
    told.requestBody ? [h("h4", {}, "Request"), contents(told.requestBody.content, false)] : null,
    h("h4", {}, "Answers"),
    h("ul", { class: "fields-list" }, Object.entries(told.responses ?? {}).map(([status, answer]) => h("li", {},
      h("div", {}, h("span", { class: "name" }, status)), prose(answer.description), contents(answer.content, false))))) };
}

async function read() {
  try {
    const response = await fetch(at("openapi.json"));
    if (!response.ok) throw new Error(`status ${response.status}`);
    spec = await response.json();
  } catch (error) {
    $("lead").textContent = `The document can’t be read: ${error.message}`;
    return;
  }
  $("version").textContent = `API reference, version ${spec.info.version}`;
  $("lead").textContent = spec.info.description;
  const methods = ["get", "post", "put", "patch", "delete"];
  const operations = Object.entries(spec.paths).flatMap(([path, item]) => methods.filter((method) => item[method])
    .map((method) => ({ path, method, told: item[method] })));
  const known = (spec.tags ?? []).map(({ name }) => name);
  const tags = [...new Set([...known, ...operations.map(({ told }) => told.tags?.[0] ?? "other")])];
  for (const name of tags) {
    const mine = operations.filter(({ told }) => (told.tags?.[0] ?? "other") === name);
    if (!mine.length) continue;
    const drawn = mine.map(({ path, method, told }) => ({ path, method, ...operation(path, method, told) }));
    $("reference").append(h("section", { "aria-label": name }, h("h2", {}, name),
      prose(spec.tags?.find((tag) => tag.name === name)?.description), drawn.map(({ root }) => root)));
    $("contents").append(h("div", {}, h("h2", {}, name), h("ul", {}, drawn.map(({ path, method, id }) => h("li", {},
      h("a", { href: `#${id}` }, `${method.toUpperCase()} ${path}`))))));
  }
  const schemas = Object.keys(spec.components?.schemas ?? {});
  $("reference").append(h("section", { id: "schemas", "aria-labelledby": "schemas-title" }, h("h2", { id: "schemas-title" }, "Schemas"),
    h("div", { class: "fields-list" }, schemas.map((name) => folded({ $ref: `#/components/schemas/${name}` })))));
  $("contents").append(h("div", {}, h("h2", {}, h("a", { href: "#schemas" }, "Schemas"))));
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

read();
