// The chart's values.schema.json knows exactly the settings of the webhook's configuration, with their names and
// bounds.
import { readFileSync } from 'node:fs';
import test from 'ava';
import { webhookSettings } from '../../../webhook/config.ts';

type Json = { readonly [key: string]: unknown };
/** What both forms say of one setting. */
type Facts = { keys?: string[]; names?: unknown[]; least?: unknown; most?: unknown };

const values = JSON.parse(
  readFileSync(new URL('../../../charts/cotenant/values.schema.json', import.meta.url), 'utf8'),
);

function ofJsonSchema(schema: Json, path: string, found: Map<string, Facts>): Map<string, Facts> {
  const name = String(schema.$ref ?? '').replace('#/definitions/', '');
  if (name !== '') return ofJsonSchema(values.definitions[name], path, found);
  const { properties, additionalProperties: others, items } = schema as Record<string, Json | undefined>;
  const facts: Facts = {};
  if (properties) facts.keys = Object.keys(properties).sort();
  if (schema.enum) facts.names = schema.enum as unknown[];
  if (schema.minimum !== undefined || schema.minItems) facts.least = schema.minimum ?? schema.minItems;
  if (schema.maximum !== undefined) facts.most = schema.maximum;
  if (Object.keys(facts).length > 0) found.set(path, { ...found.get(path), ...facts });
  for (const [key, value] of Object.entries(properties ?? {})) ofJsonSchema(value as Json, `${path}.${key}`, found);
  if (typeof others === 'object') ofJsonSchema(others, `${path}.*`, found);
  if (items) ofJsonSchema(items, path, found);
  return found;
}

function ofValibot(schema: Json, path: string, found: Map<string, Facts>): Map<string, Facts> {
  const { pipe, entries, wrapped, item, value, options } = schema as Record<string, Json | undefined>;
  const facts: Facts = {};
  if (schema.type === 'picklist') facts.names = options as unknown as unknown[];
  if (entries) facts.keys = Object.keys(entries).sort();
  if (
    (schema.type === 'min_value' || schema.type === 'min_length') &&
    !(schema.type === 'min_length' && !schema.requirement)
  )
    facts.least = schema.requirement;
  if (schema.type === 'max_value') facts.most = schema.requirement;
  if (Object.keys(facts).length > 0) found.set(path, { ...found.get(path), ...facts });
  for (const part of (pipe as unknown as Json[] | undefined) ?? []) ofValibot(part, path, found);
  if (pipe) return found;
  for (const [key, entry] of Object.entries(entries ?? {})) ofValibot(entry as Json, `${path}.${key}`, found);
  if (wrapped) ofValibot(wrapped, path, found);
  if (item) ofValibot(item, path, found);
  if (schema.type === 'record' && value) ofValibot(value, `${path}.*`, found);
  return found;
}

test('values.schema.json has the settings, names and bounds of the configuration', (t) => {
  const { configuration } = values.properties.webhook.properties;
  const declared = ofValibot(webhookSettings as unknown as Json, 'configuration', new Map());
  const ofChart = ofJsonSchema(configuration, 'configuration', new Map());
  t.true(declared.size > 15);
  t.deepEqual(Object.fromEntries([...ofChart].sort()), Object.fromEntries([...declared].sort()));
});
