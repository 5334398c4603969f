// Access to the exporter's pages: how long reviews of tokens are cached, how many are in flight, and that whatever
// cannot be decided is refused.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import type { Reviewed } from '../../../src/kube/token-review.ts';
import { bearerTokenIn, checkAccess } from '../../../src/serving/auth.ts';
import { openBearerTokenFile } from '../../../src/serving/bearer-token-file.ts';
import { createTokenReviewCache } from '../../../src/serving/token-review-cache.ts';
import { temporaryFolder } from '../../support/native/node.ts';

const TOKEN = 'a-token-of-some-length';
const PATH = '/metrics';

/** Reviews with the test's answers and clock. */
function reviewed(answer: (token: string) => Reviewed | Promise<Reviewed>) {
  const asked: string[] = [];
  const clock = { ms: 0 };
  const reviews = createTokenReviewCache(
    async (token, path) => {
      asked.push(`${token} ${path}`);
      return answer(token);
    },
    () => clock.ms,
  );
  return { reviews, asked, clock };
}

test('an allowed token is cached for a minute, a refused one for 10 s, per path', async (t) => {
  const { reviews, asked, clock } = reviewed((token) => (token === 'good' ? 'allowed' : 'forbidden'));
  for (const path of [PATH, PATH, '/status.json', PATH]) t.is(await reviews.of('good', path), 'allowed');
  for (const _ of [1, 2]) t.is(await reviews.of('bad', PATH), 'forbidden');
  t.deepEqual(asked.splice(0), ['good /metrics', 'good /status.json', 'bad /metrics']);
  clock.ms = 10_000;
  await reviews.of('good', PATH);
  await reviews.of('bad', PATH);
  t.deepEqual(asked.splice(0), ['bad /metrics']);
  clock.ms = 60_000;
  await reviews.of('good', PATH);
  t.deepEqual(asked, ['good /metrics']);
});

test('concurrent requests share one review, and a failed review is not cached', async (t) => {
  let fails = true;
  const { reviews, asked } = reviewed(() => {
    if (fails) throw new Error('no answer within 2 s');
    return 'allowed';
  });
  const all = await Promise.allSettled([1, 2, 3].map(() => reviews.of('good', PATH)));
  t.deepEqual([...new Set(all.map(({ status }) => status))], ['rejected']);
  t.is(asked.length, 1);
  fails = false;
  t.is(await reviews.of('good', PATH), 'allowed');
  t.is(asked.length, 2);
});

test('a flood of wrong tokens causes few reviews and keeps no valid token out', async (t) => {
  const gate = Promise.withResolvers<void>();
  let isHeld = false;
  const { reviews, asked, clock } = reviewed(async (token) => {
    if (isHeld && token !== 'good') await gate.promise;
    return token === 'good' ? 'allowed' : 'unauthenticated';
  });
  await reviews.of('good', PATH);
  for (let stranger = 0; stranger < 1000; stranger += 1) await reviews.of(`stranger ${stranger}`, PATH);
  asked.length = 0;
  await reviews.of('good', PATH);
  t.deepEqual(asked, [], 'the right one is still known');
  // The newest 256 are remembered, and no older one.
  await reviews.of('stranger 744', PATH);
  t.deepEqual(asked, []);
  await reviews.of('stranger 743', PATH);
  t.deepEqual(asked.splice(0), ['stranger 743 /metrics']);

  isHeld = true;
  clock.ms = 60_000;
  const flood = Array.from({ length: 20 }, (_, index) => reviews.of(`flood ${index}`, PATH));
  const refused = (await Promise.allSettled(flood.slice(8))).map((one) =>
    one.status === 'rejected' ? String(one.reason.message) : one.status,
  );
  t.deepEqual([...new Set(refused)], ['too many tokens are being reviewed at once']);
  t.is(asked.length, 8);
  t.is(await reviews.of('good', PATH), 'allowed', 'though its time was over');
  gate.resolve();
  t.deepEqual([...new Set(await Promise.all(flood.slice(0, 8)))], ['unauthenticated']);
  t.is(await reviews.of('flood 9', PATH), 'unauthenticated', 'others are reviewed again');
});

test('only an Authorization header of type Bearer has a token', (t) => {
  const cases: [header: string | undefined, token: string | undefined][] = [
    [`Bearer ${TOKEN}`, TOKEN],
    [`bearer  ${TOKEN} `, TOKEN],
    [`Basic ${TOKEN}`, undefined],
    [TOKEN, undefined],
    ['Bearer ', undefined],
    ['Bearer a b', undefined],
    ['', undefined],
    [undefined, undefined],
  ];
  for (const [header, token] of cases) t.is(bearerTokenIn(header), token, header ?? 'none');
});

test('only a token of the file, or one that the API server allows, opens the page', async (t) => {
  const bearer = { matches: async (token: string) => token === TOKEN };
  const broken = {
    matches: async (): Promise<boolean> => {
      throw new Error('the file is gone');
    },
  };
  const says = (said: Reviewed) => ({ of: async () => said });
  const silent = {
    of: async (): Promise<Reviewed> => {
      throw new Error('no answer within 2 s');
    },
  };
  const of = async (rules: Parameters<typeof checkAccess>[0], token?: string) => {
    const verdict = await checkAccess(rules, token, PATH);
    return verdict.may ? 200 : verdict.status;
  };
  t.is(await of({}), 200);
  t.deepEqual([await of({ bearer }), await of({ bearer }, 'x'), await of({ bearer }, TOKEN)], [401, 401, 200]);
  t.deepEqual([await of({ bearer: broken }, TOKEN), await of({ bearer: broken })], [503, 401]);
  for (const [said, status] of [
    ['allowed', 200],
    ['forbidden', 403],
    ['unauthenticated', 401],
  ] as const) {
    t.is(await of({ reviews: says(said) }, 'x'), status);
    t.is(await of({ bearer, reviews: says(said) }, 'x'), status);
    t.is(await of({ bearer, reviews: says(said) }, TOKEN), 200);
  }
  t.is(await of({ reviews: silent }, 'x'), 503);
  t.is(await of({ bearer: broken, reviews: says('unauthenticated') }, TOKEN), 503, 'the file might have known it');
  t.is(await of({ bearer: broken, reviews: says('allowed') }, 'x'), 200);
});

test('the token file is read again, and opens nothing while it has no token', async (t) => {
  const path = join(temporaryFolder(t), 'token');
  let ms = 0;
  await t.throwsAsync(
    openBearerTokenFile(path, () => ms),
    { message: /ENOENT.*token/ },
  );
  for (const wrong of ['', 'short\n', 'one-long-token another-long-token']) {
    writeFileSync(path, wrong);
    await t.throwsAsync(
      openBearerTokenFile(path, () => ms),
      { message: `${path}: want one token of at least 16 characters without blanks` },
    );
  }
  writeFileSync(path, `${TOKEN}\n`);
  const file = await openBearerTokenFile(path, () => ms);
  t.deepEqual(
    [await file.matches(TOKEN), await file.matches(`${TOKEN}x`), await file.matches('')],
    [true, false, false],
  );
  writeFileSync(path, 'another-token-of-some-length');
  ms = 1000;
  t.deepEqual([await file.matches(TOKEN), await file.matches('another-token-of-some-length')], [false, true]);
  writeFileSync(path, '');
  ms = 2000;
  await t.throwsAsync(file.matches('another-token-of-some-length'));
  writeFileSync(path, TOKEN);
  ms = 3000;
  t.true(await file.matches(TOKEN));
});
