// The shapes of public manifests in test/fixtures/manifests/public-shapes.txt, and the pod of each.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import type { JsonObject } from '../../../src/common/json.ts';
import { ROOT } from '../../support/docs.ts';

export type Pod = JsonObject & { readonly metadata: JsonObject; readonly spec: JsonObject };
export type Row = Readonly<Record<'dialects' | 'kind' | 'limits' | 'more' | 'becomes' | 'source', string>>;

const lines = readFileSync(join(ROOT, 'test/fixtures/manifests/public-shapes.txt'), 'utf8').split('\n');
export const sources = new Set(lines.flatMap((line) => /^# ([\w.-]+): ./.exec(line)?.[1] ?? []));
export const rows = lines
  .filter((line) => line !== '' && !line.startsWith('#'))
  .map((line): Row => {
    const [dialects = '', kind = '', limits = '', more = '', becomes = '', source = ''] = line
      .split(' | ')
      .map((cell) => cell.trim());
    return { dialects, kind, limits, more, becomes, source };
  });

/** What the rules of the tests allow besides the dialects of a row. */
export const ALLOWED = { allowMemoryIsolationOff: true, allowMemoryOvercommit: true, nvidiaReplicas: 4 };

/** `m`, `s`, `c`: parts of the pod's metadata, its spec, and its container; `i`, `o`: init containers, and others. */
export function podOf({ limits, more }: Row): Pod {
  const { m = {}, s = {}, c = {}, i, o = [] } = parse(more || '{}');
  const main = { name: 'main', image: 'x', ...(limits !== '' && { resources: { limits: parse(limits) } }), ...c };
  return { metadata: m, spec: { ...s, ...(i && { initContainers: i }), containers: [main, ...o] } };
}
