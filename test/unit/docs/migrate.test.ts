// The pages on the way from other systems: each row of their tables is what the webhook does, for pods of several shapes
// and in objects of several kinds. What was converted is not changed again.
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { parse } from 'yaml';
import { FOREIGN_DIALECT_NAMES } from '../../../src/api/request.ts';
import { type ConvertedPod, convertDocument } from '../../../src/cli/commands/planning/convert.ts';
import type { JsonObject } from '../../../src/common/json.ts';
import { parseConfiguration, type WebhookConfiguration } from '../../../webhook/config.ts';
import { blocks, ROOT, readPage, rowsWith } from '../../support/docs.ts';
import { configured } from '../webhook/reviews.ts';

const PAGES = readdirSync(join(ROOT, 'docs/migrate')).filter((name) => name !== 'README.md');

type Written = {
  limits: JsonObject;
  metadata: { labels: JsonObject; annotations: JsonObject };
  env: object[];
  spec: JsonObject;
};

/** What a cell of the column "written" says, such as "`x.y/gpu: 2`, label `a/b: 4`, variable `OFF: true`". */
function writtenIn(cell: string): Written {
  const found: Written = { limits: {}, metadata: { labels: {}, annotations: {} }, env: [], spec: {} };
  const pattern = /(label |annotation |variable |selector |)`([^`]+?): ([^`]+)`/g;
  for (const [, kind, key = '', value = ''] of cell.matchAll(pattern)) {
    if (kind === 'variable ') found.env.push({ name: key, value });
    else if (kind === 'selector ') found.spec = { ...found.spec, nodeSelector: { [key]: value } };
    else if (key === 'schedulerName') found.spec = { ...found.spec, schedulerName: value };
    else {
      const { labels, annotations } = found.metadata;
      Object.assign(kind === 'label ' ? labels : kind === 'annotation ' ? annotations : found.limits, { [key]: value });
    }
  }
  return found;
}

/** The row's container in pods and objects of several shapes. */
function shapesOf({ limits, metadata, env, spec }: Written): Record<string, JsonObject> {
  const main = { name: 'main', image: 'registry.example.com/app:1', env, resources: { limits } };
  const pod = (more: object = {}) => ({ metadata, spec: { ...spec, containers: [main], ...more } });
  const object = (kind: string, inside: object) => ({ kind, metadata: { name: 'x' }, spec: inside });
  return {
    pod: { kind: 'Pod', ...pod() },
    'with requests': { kind: 'Pod', ...pod({ containers: [{ ...main, resources: { limits, requests: limits } }] }) },
    'with a sidecar': {
      kind: 'Pod',
      ...pod({ initContainers: [{ name: 'mesh', restartPolicy: 'Always' }], containers: [main, { name: 'log' }] }),
    },
    deployment: object('Deployment', { template: pod() }),
    cronjob: object('CronJob', { jobTemplate: { spec: { template: pod({ restartPolicy: 'Never' }) } } }),
    raycluster: object('RayCluster', { workerGroupSpecs: [{ template: pod() }] }),
  };
}

/** What became of the row's container, in the words of the column "becomes". */
function becomeOf({ outcome, containers, problems }: ConvertedPod): string {
  if (outcome === 'refused') return `refused: ${problems.join('\n')}`;
  if (outcome === 'untouched') return 'left alone';
  return containers.find(({ container }) => container === 'main')?.share?.meaning ?? 'nothing';
}

function isAsSaid(said: string, become: string): boolean {
  const [, refusal] = /^refused: ([^:]*)/.exec(said) ?? [];
  if (refusal !== undefined) return become.startsWith('refused: ') && become.includes(refusal.trim());
  // A clause behind it is for the reader.
  return said === become || [',', ':'].some((mark) => said.startsWith(`${become}${mark}`));
}

function configurationOf(page: string): WebhookConfiguration {
  const read = parseConfiguration(parse(blocks(page, 'yaml')[0] ?? ''));
  if (!read.ok) throw new Error(read.error.map(({ path, wrong }) => `${path} ${wrong}`).join());
  return read.value;
}

let shapes = 0;
for (const name of PAGES) {
  test(`each row of docs/migrate/${name} is what the webhook does`, (t) => {
    const page = readPage(`docs/migrate/${name}`);
    const configuration = configurationOf(page);
    const rows = rowsWith(page, 'written', 'becomes');
    t.true(rows.length >= 8, `${rows.length} rows`);
    for (const { written = '', becomes = '' } of rows) {
      for (const [shape, object] of Object.entries(shapesOf(writtenIn(written)))) {
        const { pods, after } = convertDocument(object, configuration);
        // As the API server passes it on: a second pass changes nothing.
        const passedOn = JSON.parse(JSON.stringify(after)) as JsonObject;
        t.deepEqual(convertDocument(passedOn, configuration).after, passedOn, `${shape} with ${written}`);
        const become = pods.map(becomeOf).join();
        t.true(isAsSaid(becomes, become), `${shape} with ${written}: ${become}, the page says ${becomes}`);
        shapes += 1;
      }
    }
  });
}

test('there is a page for each dialect, and hundreds of shapes are held to them', (t) => {
  t.deepEqual(PAGES.map((name) => name.replace('.md', '')).toSorted(), [...FOREIGN_DIALECT_NAMES].toSorted());
  t.true(shapes >= 600, String(shapes));
});

test('systems without a dialect: pods are left alone, and shares are written instead', (t) => {
  const all = configured({ rules: { dialects: FOREIGN_DIALECT_NAMES } });
  const rows = rowsWith(readPage('docs/migrate/README.md'), 'asks for', 'write instead');
  t.is(rows.length, 5);
  for (const { 'asks for': theirs = '', 'write instead': ours = '' } of rows) {
    const outcomes = (cell: string) =>
      Object.values(shapesOf(writtenIn(cell))).flatMap((object) =>
        convertDocument(object, all).pods.map(({ outcome, problems }) => [outcome, ...problems].join()),
      );
    t.deepEqual(new Set(outcomes(theirs)), new Set(['untouched']), theirs);
    t.deepEqual(new Set(outcomes(ours)), new Set(['share']), ours);
  }
});
