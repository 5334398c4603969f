// What is read of a namespace's pods before the pods of a group are bound, from API servers that the test makes.
import test from 'ava';
import { REQUEST_ANNOTATION } from '../../../src/api/names.ts';
import { createLogger } from '../../../src/common/logger.ts';
import { unboundPodsOf } from '../../../src/scheduler/groups/pod-groups.ts';
import { answer, startApiServer } from '../../support/services/api-server.ts';

const logger = () => createLogger({ component: 'test', write: () => undefined });
const pod = (uid: string, metadata: object = {}) => ({
  metadata: { uid, annotations: { [REQUEST_ANNOTATION]: '{}' }, ...metadata },
  spec: { containers: [{ name: 'main', env: [{ name: 'TEXT', value: 'x'.repeat(10_000) }] }] },
});

test('pods of all pages that ask for a share are there, those being deleted are not', async (t) => {
  const asked: (string | null)[][] = [];
  const pages = [
    [pod('first'), pod('leaving', { deletionTimestamp: '2026-01-01T00:00:00Z' })],
    [pod('other', { annotations: {} })],
    [pod('last')],
  ];
  const { config } = await startApiServer(t, ({ url }, response) => {
    const at = Number(url.searchParams.get('continue') ?? '0');
    asked.push([url.pathname, url.searchParams.get('fieldSelector'), url.searchParams.get('limit')]);
    const next = at + 1 < pages.length ? { continue: String(at + 1) } : {};
    answer(response, 200, { metadata: { resourceVersion: '1', ...next }, items: pages[at] });
  });
  t.deepEqual(await unboundPodsOf(config, logger())('team'), new Set(['first', 'last']));
  t.deepEqual(asked, Array(3).fill(['/api/v1/namespaces/team/pods', 'spec.nodeName=', '500']));
});

test('a page without an answer leaves it unknown which pods are there', async (t) => {
  let pages = 0;
  const { config } = await startApiServer(t, (_, response) => {
    pages += 1;
    if (pages < 3) answer(response, 200, { metadata: { continue: 'more' }, items: [pod('same')] });
  });
  t.is(await unboundPodsOf(config, logger(), 3000)('team'), undefined);
  t.is(pages, 3);
});
