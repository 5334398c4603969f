import test from 'ava';
import { allOf } from '../../support/parts.ts';

test('a part that fails or cannot start is named and does not stop the others', async (t) => {
  const parts = ['first', 'second', 'third', 'last'].map((name) => ({ name, words: [], environment: {} }));
  const run: string[] = [];
  const failed = await allOf(parts, async ({ name }) => {
    run.push(name);
    if (name === 'third') throw new Error('no such program');
    return name !== 'second';
  });
  t.deepEqual(run, ['first', 'second', 'third', 'last']);
  t.deepEqual(failed, ['second', 'third']);
  t.deepEqual(await allOf(parts, async () => true), []);
});
