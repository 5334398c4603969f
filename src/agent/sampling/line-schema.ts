// The sampler's output, one JSON line per sample, and its validation: a half-written line must not become figures. Each
// line by itself; how lines build on each other is in delta-decoder.ts.
import type { Sample } from './sample.ts';
import {
  CURSOR_FIELDS,
  ERROR_FIELDS,
  type FieldTable,
  GPU_FIELDS,
  type Kind,
  LINE_FIELDS,
  type ObjectOf,
  PROCESS_FIELDS,
  SAMPLE_FIELDS,
  USE_FIELDS,
  XID_FIELDS,
} from './sample-fields.ts';

export type UtilizationCursor = ObjectOf<typeof CURSOR_FIELDS>;
/**
 * A sample without the processes that did not change since the line before. The entry of a process whose values alone
 * changed omits its identity.
 */
export type SampleLine = Sample &
  ObjectOf<typeof LINE_FIELDS> & { readonly utilizationCursors: readonly UtilizationCursor[] };

const isNumber = (value: unknown): boolean => Number.isInteger(value) && Number(value) >= 0;
const isText = (value: unknown): boolean => typeof value === 'string';
const KINDS: Readonly<Record<Kind, readonly [good: (value: unknown) => boolean, want: string]>> = {
  text: [isText, 'text'],
  texts: [(value) => Array.isArray(value) && value.every(isText), 'a list of texts'],
  number: [isNumber, 'a whole number'],
  numbers: [(value) => Array.isArray(value) && value.every(isNumber), 'a list of whole numbers'],
  flag: [(value) => typeof value === 'boolean', 'true or false'],
};

type Shape = readonly {
  readonly name: string;
  readonly mayLack: boolean;
  readonly good: (value: unknown) => boolean;
  readonly want: string;
}[];
const shapeOf = (...tables: readonly FieldTable[]): Shape =>
  tables.flatMap(({ required, optional }) =>
    [required, optional].flatMap((fields) =>
      Object.entries(fields).map(([name, kind]) => {
        const [good, want] = KINDS[kind];
        return { name, mayLack: fields === optional, good, want };
      }),
    ),
  );

const LINE = shapeOf(SAMPLE_FIELDS, LINE_FIELDS);
const GPU = shapeOf(GPU_FIELDS);
const PROCESS = shapeOf(PROCESS_FIELDS);
const USE = shapeOf(USE_FIELDS);
const CURSOR = shapeOf(CURSOR_FIELDS);
const XID = shapeOf(XID_FIELDS);
const ERROR = shapeOf(ERROR_FIELDS);

/** The first wrong field of `value`, with what is wanted. */
function wrongIn(value: unknown, fields: Shape): string | undefined {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return ': want an object';
  const entry = value as Readonly<Record<string, unknown>>;
  for (const { name, mayLack, good, want } of fields) {
    const found = entry[name];
    if (!(found === undefined && mayLack) && !good(found)) return `.${name}: want ${want}`;
  }
  return undefined;
}

/** `place` names the list, and is called only where an entry is wrong. */
function wrongInList(value: unknown, fields: Shape, place: () => string): string | undefined {
  if (!Array.isArray(value)) return `${place()}: want a list`;
  for (let index = 0; index < value.length; index += 1) {
    const wrong = wrongIn(value[index], fields);
    if (wrong !== undefined) return `${place()}[${index}]${wrong}`;
  }
  return undefined;
}

/** Parses one line, or says what is wrong with it by itself. */
export function parseLine(line: string): SampleLine | { readonly wrong: string } {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch (error) {
    return { wrong: `not JSON: ${String(error)}` };
  }
  const wrong = wrongIn(value, LINE);
  if (wrong !== undefined) return { wrong: `sample${wrong}` };
  const sample = value as SampleLine;
  const wrongEntry =
    wrongInList(sample.gpus, GPU, () => 'gpus') ??
    wrongInList(sample.errors, ERROR, () => 'errors') ??
    wrongInList(sample.xids ?? [], XID, () => 'xids') ??
    wrongInList(sample.utilizationCursors, CURSOR, () => 'utilizationCursors') ??
    wrongInList(sample.processes, PROCESS, () => 'processes');
  if (wrongEntry !== undefined) return { wrong: wrongEntry };
  for (const [index, process] of sample.processes.entries()) {
    const wrongUse = wrongInList(process.gpus, USE, () => `processes[${index}].gpus`);
    if (wrongUse !== undefined) return { wrong: wrongUse };
  }
  return sample;
}
