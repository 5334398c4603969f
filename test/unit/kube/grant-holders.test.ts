// A pod that holds a grant counts as gone only when the API server says so: the informer may be late.
import { setImmediate as turn } from 'node:timers/promises';
import type { V1Pod } from '@kubernetes/client-node';
import test from 'ava';
import { createHolderStates } from '../../../src/kube/grant-holders.ts';
import { eventually } from '../../support/native/node.ts';

const podOf = (uid: string): V1Pod => ({ metadata: { name: 'one', namespace: 'team', uid } });
const holder = (podUid: string) => ({ podUid, pod: { namespace: 'team', name: 'one' }, containers: [] });

function setUp() {
  const { promise: ready, resolve: list } = Promise.withResolvers<void>();
  const known = {
    cached: new Map<string, V1Pod>(),
    /** What a read answers. */
    server: undefined as V1Pod | undefined,
    isAway: false,
    reads: 0,
    changes: 0,
    gone: [] as string[],
    tellGone: () => {},
  };
  const { stateOf, goneSinceMs } = createHolderStates({
    pods: {
      ready,
      cached: (uid) => known.cached.get(uid),
      async read() {
        known.reads += 1;
        if (known.isAway) throw new Error('away');
        return known.server;
      },
      listenGone(listener) {
        known.tellGone = listener;
      },
    },
    onChange: () => {
      known.changes += 1;
    },
    onGone: ({ uid }) => known.gone.push(uid),
    retryMs: 1,
  });
  return { known, list, kindOf: (uid: string) => stateOf(holder(uid)).kind, goneSinceMs };
}

test('before the pods were listed nothing is known, and nothing is asked', async (t) => {
  const { known, list, kindOf } = setUp();
  t.is(kindOf('u'), 'unknown');
  t.is(known.reads, 0);
  known.cached.set('u', podOf('u'));
  list();
  await turn();
  t.is(known.changes, 1);
  t.is(kindOf('u'), 'present');
  t.is(known.reads, 0);
});

test('a pod that is deleted by force, or replaced under its name, is gone', async (t) => {
  for (const server of [undefined, podOf('successor')]) {
    const { known, list, kindOf, goneSinceMs } = setUp();
    list();
    await turn();
    known.server = server;
    const beforeMs = Date.now();
    t.is(kindOf('u'), 'unknown', 'until it is read');
    await turn();
    t.is(kindOf('u'), 'gone');
    t.true((goneSinceMs('u') ?? 0) >= beforeMs);
    t.is(goneSinceMs('other'), undefined);
    t.deepEqual(known.gone, ['u']);
    t.is(known.changes, 2);
    kindOf('u');
    t.is(known.reads, 1);
  }
});

test('a pod that the informer does not have yet is not gone', async (t) => {
  const { known, list, kindOf } = setUp();
  list();
  await turn();
  known.server = podOf('u');
  kindOf('u');
  await turn();
  t.is(kindOf('u'), 'unknown');
  t.deepEqual(known.gone, []);
});

test('while the API server is away a pod is unknown, and asked for again later', async (t) => {
  const { known, list, kindOf } = setUp();
  list();
  await turn();
  known.isAway = true;
  kindOf('u');
  await eventually(() => known.changes > 1 || undefined, 'it is to be asked for again');
  known.isAway = false;
  t.is(kindOf('u'), 'unknown');
  await turn();
  t.is(kindOf('u'), 'gone');
});

test('a deletion has the states read again', (t) => {
  const { known } = setUp();
  known.tellGone();
  t.is(known.changes, 1);
});
