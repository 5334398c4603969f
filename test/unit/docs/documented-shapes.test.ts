// What the documentation of other systems says of their manifests, held against what the webhook makes of them. The
// answers in test/fixtures/manifests/documented-shapes.txt come from those pages alone; differences are named there.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { parse } from 'yaml';
import type { GpuShare } from '../../../src/api/request.ts';
import { parsePodRequest } from '../../../src/api/request-annotation.ts';
import { type JsonObject, objectAt } from '../../../src/common/json.ts';
import { ROOT } from '../../support/docs.ts';
import { answerOf, configured, creation } from '../webhook/reviews.ts';

const read = (name: string) =>
  readFileSync(join(ROOT, 'test/fixtures/manifests', name), 'utf8')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => line.split(' | ').map((cell) => cell.trim()));

const lines = read('documented-shapes.txt');
const sources = new Set(lines.flatMap(([line = '']) => /^# ([\w-]+): ./.exec(line)?.[1] ?? []));
const shapes = lines.filter(([line = '']) => !line.startsWith('#'));
const ALLOWED = { allowMemoryIsolationOff: true, allowMemoryOvercommit: true, nvidiaReplicas: 4 };
const MIB = 2 ** 20;

function podOf(limits: string, more: string): JsonObject {
  const { m = {}, s = {}, c = {}, o = [] } = parse(more || '{}');
  const main = { name: 'main', image: 'x', ...(limits !== '' && { resources: { limits: parse(limits) } }), ...c };
  return { metadata: m, spec: { ...s, containers: [main, ...o] } };
}

/** `none`, `refused`, or the shares of the only container that has some. */
function madeOf(dialects: string, pod: JsonObject): 'none' | 'refused' | readonly GpuShare[] {
  const answer = answerOf(creation(pod), configured({ rules: { dialects: dialects.split(','), ...ALLOWED } }));
  if (answer.outcome === 'denied') return 'refused';
  const record = parsePodRequest(objectAt(objectAt(answer.pod, 'metadata'), 'annotations')['cotenant.io/request']);
  return record.ok ? (record.value.containers[0]?.gpus ?? []) : 'none';
}

const memoryOf = ({ memory }: GpuShare): string => {
  if (memory.kind === 'bytes') return `${memory.bytes / MIB} MiB`;
  if (memory.kind === 'units') return `${(memory.units * memory.unitBytes) / MIB} MiB`;
  return memory.kind === 'percent' ? `${memory.percent} %` : 'whole';
};

test('sixty shapes become what their system documents, or what is named instead', (t) => {
  t.true(shapes.length >= 60, String(shapes.length));
  const known = new Set(read('public-shapes.txt').map((cells) => cells.slice(0, 4).join(' | ')));
  for (const cells of shapes) {
    const [dialects = '', , limits = '', more = '', gpus = '', memory = '', compute = '', here = '', source = ''] =
      cells;
    const what = cells.join(' | ');
    t.true(known.has(cells.slice(0, 4).join(' | ')) && sources.has(source), what);
    const made = madeOf(dialects, podOf(limits, more));
    if (here || gpus === 'none' || gpus === 'refused') {
      t.deepEqual(made, (here || gpus) as typeof made, what);
      continue;
    }
    if (typeof made === 'string') {
      t.fail(`${made}: ${what}`);
      continue;
    }
    t.is(made.length, Number(gpus), what);
    for (const share of made) {
      if (memory !== '-') t.is(memoryOf(share), memory, what);
      if (compute !== '-') t.is(`${share.coresPercent} %`, compute, what);
    }
  }
});
