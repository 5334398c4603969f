// Annotations of commit 286300f, which called a GPU a card: they are read wherever today's are, and never written.
import { readFileSync } from 'node:fs';
import test from 'ava';
import { nodeGpusText, wasGivenGpus } from '../../../src/api/earlier-names.ts';
import { formatPodGrant, type PodGrant, parsePodGrant } from '../../../src/api/grant-annotation.ts';
import { type NodeGpus, parseNodeGpus } from '../../../src/api/node-annotation.ts';
import type { PodRequest } from '../../../src/api/request.ts';
import { formatPodRequest, parsePodRequest } from '../../../src/api/request-annotation.ts';
import type { JsonObject } from '../../../src/common/json.ts';
import { answerOf, configured, creation } from '../webhook/reviews.ts';

type Pod = JsonObject & { readonly metadata: { readonly annotations: Readonly<Record<string, string>> } };

const saved = JSON.parse(readFileSync(new URL('../../fixtures/upgrade/annotations.json', import.meta.url), 'utf8')) as {
  readonly configuration: object;
  readonly pods: readonly { readonly created: JsonObject; readonly admitted: Pod; readonly request: object }[];
  readonly grants: readonly { readonly text: string; readonly grant: object }[];
  readonly node: { readonly annotations: Readonly<Record<string, string>>; readonly value: object };
};

/** The same value with today's names. */
const renamed = <T>(value: object): T =>
  JSON.parse(
    JSON.stringify(value).replaceAll('"cards":', '"gpus":').replaceAll('"mostTenantsPerCard":', '"mostTenantsPerGpu":'),
  );
const requestOf = (pod: Pod): string => pod.metadata.annotations['cotenant.io/request'] ?? '';

test('an old request annotation is read, and written in the current format', (t) => {
  for (const { admitted, request } of saved.pods) {
    const text = requestOf(admitted);
    t.true(text.includes('"cards":'));
    const read = parsePodRequest(text);
    t.deepEqual(read, { ok: true, value: renamed<PodRequest>(request) });
    if (read.ok) t.is(formatPodRequest(read.value), text.replaceAll('"cards":', '"gpus":'));
  }
});

test('a grant annotation of the earlier form is read, and written in the current form', (t) => {
  for (const { text, grant } of saved.grants) {
    const value = renamed<PodGrant>(grant);
    t.deepEqual(parsePodGrant(text), { ok: true, value });
    t.is(formatPodGrant(value), text.replaceAll('"cards":', '"gpus":'));
  }
});

test('both forms in one text are neither', (t) => {
  const [{ text } = { text: '' }] = saved.grants;
  t.false(parsePodGrant(text.replace('"cards":', '"gpus":[],"cards":')).ok);
  const [, several = { text: '' }] = saved.grants;
  t.false(parsePodGrant(several.text.replace('"cards":', '"gpus":')).ok);
});

test('the GPUs of a node with an older agent are read', (t) => {
  const text = nodeGpusText(saved.node.annotations) ?? '';
  t.deepEqual(parseNodeGpus(text), { ok: true, value: renamed<NodeGpus>(saved.node.value) });
  t.is(nodeGpusText({ ...saved.node.annotations, 'cotenant.io/gpus': 'new' }), 'new');
  t.is(nodeGpusText({}), undefined);
});

test('a container that an earlier agent gave GPUs is known by its annotation', (t) => {
  t.true(wasGivenGpus({ 'cotenant.io/cards-given': 'GPU-1' }));
  t.true(wasGivenGpus({ 'cotenant.io/gpus-given': 'GPU-1' }));
  t.false(wasGivenGpus({}));
});

test('a pod that an earlier webhook admitted passes validation as it is', (t) => {
  const configuration = configured(saved.configuration);
  for (const { created, admitted } of saved.pods) {
    for (const route of ['mutate', 'validate'] as const)
      t.like(answerOf(creation(admitted), configuration, route), { outcome: 'allowed', patch: [] });
    const now = answerOf(creation(created), configuration).pod as Pod;
    t.is(requestOf(now), requestOf(admitted).replaceAll('"cards":', '"gpus":'));
  }
});
