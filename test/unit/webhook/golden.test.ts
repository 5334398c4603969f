// Whole answers against files in test/golden/webhook. After a wanted change: UPDATE_GOLDEN=1 ava
// test/unit/webhook/golden.test.ts
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import test from 'ava';
import type { Route } from '../../../webhook/admission-review.ts';
import { REVIEWS, switchedOn } from './golden-reviews.ts';
import { answerOf } from './reviews.ts';

const GOLDEN = join(import.meta.dirname, '../../golden/webhook');

for (const [name, body] of Object.entries(REVIEWS)) {
  const route: Route = name.includes('-update-') && !name.includes('ephemeral') ? 'validate' : 'mutate';

  test(`${name}: the answer is the golden one`, (t) => {
    const { pod: _, ...answer } = answerOf(body, switchedOn(name), route);
    const file = join(GOLDEN, `${name}.json`);
    const text = `${JSON.stringify({ route, ...answer }, null, 2)}\n`;
    if (process.env.UPDATE_GOLDEN) writeFileSync(file, text);
    t.is(text, readFileSync(file, 'utf8'));
  });

  test(`${name}: a second pass changes nothing`, (t) => {
    const first = answerOf(body, switchedOn(name), route);
    const again = { ...body, request: { ...(body.request as object), object: first.pod } };
    const second = answerOf(again, switchedOn(name), route);
    t.deepEqual(second.patch, []);
    t.is(second.allowed, first.allowed);
  });
}

test('every golden file belongs to a review', (t) => {
  const stray = readdirSync(GOLDEN).filter((file) => !Object.hasOwn(REVIEWS, basename(file, '.json')));
  t.deepEqual(stray, []);
  t.true(existsSync(join(GOLDEN, 'one-container.json')));
});

test('validation allows every patched pod and refuses every unpatched one with a share', (t) => {
  for (const [name, body] of Object.entries(REVIEWS)) {
    if (name.includes('-update-')) continue;
    const configuration = switchedOn(name);
    const mutated = answerOf(body, configuration);
    const after = { ...body, request: { ...(body.request as object), object: mutated.pod } };
    t.true(answerOf(after, configuration, 'validate').allowed, name);
    t.is(answerOf(body, configuration, 'validate').allowed, mutated.patch.length === 0, name);
  }
});
