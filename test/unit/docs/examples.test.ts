// The examples: each is listed on their page, and the webhook gives each pod a share.
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { parse } from 'yaml';
import { ROOT, readPage } from '../../support/docs.ts';
import { answerOf, configured, creation } from '../webhook/reviews.ts';

const FOLDER = 'examples/kubernetes';

/** The pod of a manifest: the manifest itself, or a Deployment's template. */
const podOf = (object: { kind: string; spec: { template?: object } }): unknown =>
  object.kind === 'Pod' ? object : { apiVersion: 'v1', kind: 'Pod', ...object.spec.template };

test('the page lists every example', (t) => {
  const page = readPage('examples/README.md');
  const files = readdirSync(join(ROOT, 'examples'), { recursive: true, encoding: 'utf8' }).filter((name) =>
    /\/.*\.(yaml|sh)$/.test(name),
  );
  t.true(files.length >= 10);
  for (const name of files) t.true(page.includes(`](${name})`), name);
});

test('the webhook gives a share to the pod of every example', (t) => {
  const configuration = configured({
    rules: { dialects: ['ack', 'metagpu', 'hami', 'koordinator', 'kai'], enforcement: 'report' },
  });
  const names = readdirSync(join(ROOT, FOLDER));
  const pods = names.map((name) => [name, parse(readPage(`${FOLDER}/${name}`))] as const);
  const workloads = pods.filter(([, { kind }]) => kind !== 'ResourceQuota');
  t.true(workloads.length >= 7);
  for (const [name, object] of workloads) {
    const { outcome, denial } = answerOf(creation(podOf(object)), configuration);
    t.deepEqual({ outcome, denial }, { outcome: 'patched', denial: undefined }, name);
  }
});
