// Sizes by name, which an annotation puts in the place of amounts.
import test from 'ava';
import { outcome, requestOf, rules, share } from './pods.ts';

const M = 'cotenant.io/gpu-memory';
const sizes = rules({
  templates: { small: { gpuMemory: '4Gi' }, large: { gpu: 2, gpuMemory: '64Gi', gpuCores: 100 } },
});
const templated = (template: string, ...containers: object[]) => ({
  metadata: { annotations: { 'cotenant.io/template': template } },
  spec: { containers },
});

test('a template sets amounts for the only container or for named containers', (t) => {
  const [only] = requestOf(templated('small', { name: 'main' }), sizes).containers;
  t.deepEqual(only?.asked, {
    'cotenant.io/gpu': '1',
    'cotenant.io/gpu-memory': '4Gi',
    'cotenant.io/template': 'small',
  });
  const named = requestOf(templated('b=small, a=large', { name: 'a' }, { name: 'b' }, { name: 'c' }), sizes);
  t.deepEqual(
    named.containers.map(({ name, gpus }) => [name, gpus.length]),
    [
      ['a', 2],
      ['b', 1],
    ],
  );
});

test('blanks around names of templates do not count, however many there are', (t) => {
  const blanks = ' '.repeat(4000);
  const spaced = requestOf(templated(`${blanks}b =${blanks}small , a= large`, { name: 'a' }, { name: 'b' }), sizes);
  t.deepEqual(
    spaced.containers.map(({ name, asked }) => [name, asked['cotenant.io/template']]),
    [
      ['a', 'large'],
      ['b', 'small'],
    ],
  );
  // A regular expression that tries all ways to split these blanks never ends.
  const hostile = outcome(templated(`${' '.repeat(8000)}x\ny`, { name: 'a' }), sizes) as string[];
  t.regex(hostile[0] ?? '', /is not a configured template/);
});

test('an annotation that is absurdly long is refused unread', (t) => {
  t.deepEqual(outcome(templated(`small${' '.repeat(8188)}`, { name: 'a' }), sizes), [
    `metadata.annotations["cotenant.io/template"]: "small${' '.repeat(75)}..." is longer than 8192 characters; write a shorter text`,
  ]);
});

test('a template that is unclear, unknown or contradicted is refused', (t) => {
  const path = 'metadata.annotations["cotenant.io/template"]';
  const two = [{ name: 'a' }, { name: 'b' }];
  t.deepEqual(outcome(templated('small', ...two), sizes), [
    `${path}: "small" does not say which container it is for; write container=small for each of the 2 containers that is meant`,
  ]);
  t.deepEqual(outcome(templated('huge', { name: 'a' }), sizes), [
    `${path}: "huge" is not a configured template; write one of small, large, or container=template with commas`,
  ]);
  t.deepEqual(outcome(templated('z=small', ...two), sizes), [
    `${path}: "z=small" names a container that is not in the pod; write one of a, b`,
  ]);
  t.deepEqual(outcome(templated('a=small,a=large', ...two), sizes), [
    `${path}: "a=large" lacks a container, or names one twice; write one of small, large, or container=template with commas`,
  ]);
  t.deepEqual(outcome(templated('small', share('a')), sizes), [
    `spec.containers[0].resources.limits: "${M}: 1Gi" differs from template "small", which is cotenant.io/gpu: 1, ${M}: 4Gi; leave out the amounts or annotation cotenant.io/template`,
  ]);
});
