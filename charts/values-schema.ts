// The definitions of values.schema.json that describe settings of the programs: JSON Schema of the valibot schemas that
// the programs read their settings with. The chart's own settings are written in that file, and refer to these.
import { SETTINGS_SCHEMA } from '../src/agent/config.ts';
import { rulesSettings } from '../src/request/rules/namespace-rules.ts';
import { webhookSettings } from '../webhook/config.ts';

export type Json = { readonly [key: string]: unknown };

/** A schema or an action of valibot, with what the kinds that settings use hold. */
type Part = {
  readonly type: string;
  readonly requirement?: unknown;
  readonly options?: readonly unknown[];
  readonly pipe?: readonly Part[];
  readonly wrapped?: Part;
  readonly entries?: Readonly<Record<string, Part>>;
  readonly item?: Part;
  readonly value?: Part;
};

/** What the chart sets itself, and slices, which are for machines without Kubernetes. */
const NOT_OF_CHART = new Set(['stateFolder', 'host', 'port', 'page', 'kubernetes', 'slices']);

const agent: Readonly<Record<string, Part>> = SETTINGS_SCHEMA.entries;
const agentOfChart = Object.fromEntries(Object.entries(agent).filter(([name]) => !NOT_OF_CHART.has(name)));
const PARTS = {
  log: agent.log?.wrapped,
  computePolicy: agent.computePolicy?.wrapped,
  rules: rulesSettings,
  agentConfiguration: { type: 'object', entries: agentOfChart },
  webhookConfiguration: webhookSettings,
} as Readonly<Record<string, Part>>;
const NAMES = new Map(Object.entries(PARTS).map(([name, part]) => [part, name]));

/** What a part alone says; checks by a function say nothing here, and are left to the program. */
function ownFacts({ type, requirement, options, entries, item, value, wrapped }: Part): Json {
  switch (type) {
    case 'optional':
    case 'nullish':
      return wrapped ? reference(wrapped) : {};
    case 'string':
    case 'number':
    case 'boolean':
      return { type };
    case 'safe_integer':
      return { type: 'integer' };
    case 'picklist':
      return { enum: options };
    case 'union':
      return { type: (options as readonly Part[]).map((option) => option.type) };
    case 'min_value':
      return { minimum: requirement };
    case 'max_value':
      return { maximum: requirement };
    case 'non_empty':
      return { minLength: 1 };
    case 'min_length':
      return requirement === 0 ? {} : { minItems: requirement };
    case 'regex':
      return { pattern: (requirement as RegExp).source };
    case 'array':
      return { type, items: item && reference(item) };
    case 'record':
      return { type: 'object', additionalProperties: value && reference(value) };
    case 'object':
    case 'strict_object':
      return {
        type: 'object',
        additionalProperties: false,
        properties: Object.fromEntries(Object.entries(entries ?? {}).map(([name, entry]) => [name, reference(entry)])),
      };
    default:
      return {};
  }
}

const jsonSchemaOf = (part: Part): Json =>
  part.pipe ? Object.assign({}, ...part.pipe.map(jsonSchemaOf)) : ownFacts(part);

function reference(part: Part): Json {
  const name = NAMES.get(part);
  return name === undefined ? jsonSchemaOf(part) : { $ref: `#/definitions/${name}` };
}

export const programDefinitions = (): Readonly<Record<string, Json>> =>
  Object.fromEntries(Object.entries(PARTS).map(([name, part]) => [name, jsonSchemaOf(part)]));
