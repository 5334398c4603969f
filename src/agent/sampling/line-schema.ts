// The sampler's output, one JSON line per sample, and its validation: a half-written line must not become figures. Each
// line by itself; how lines build on each other is in delta-decoder.ts.
import * as v from 'valibot';
import type { Result } from '../../common/result.ts';
import { parseJson } from '../../common/schema.ts';
import type { Sample } from './sample.ts';
import { CURSOR, ERROR, GPU, LINE, PROCESS, SAMPLE, USE, XID } from './sample-fields.ts';

export type UtilizationCursor = Readonly<v.InferOutput<typeof CURSOR>>;
/**
 * A sample without the processes that did not change since the line before. The entry of a process whose values alone
 * changed omits its identity.
 */
export type SampleLine = Sample &
  Readonly<v.InferOutput<typeof LINE>> & { readonly utilizationCursors: readonly UtilizationCursor[] };

const SCHEMA = v.object({
  ...SAMPLE.entries,
  ...LINE.entries,
  gpus: v.array(GPU),
  processes: v.array(v.object({ ...PROCESS.entries, gpus: v.array(USE) })),
  xids: v.exactOptional(v.array(XID)),
  errors: v.array(ERROR),
  utilizationCursors: v.array(CURSOR),
});

/** Parses one line, or says what is wrong with it by itself. */
export const parseLine = (line: string): Result<SampleLine> => parseJson(SCHEMA, line);
