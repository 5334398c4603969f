// What the agent tells pods of what it did to them.
import test from 'ava';
import { recordOf } from '../../../src/agent/enforcement/action-record.ts';
import { eventsOf } from '../../../src/cli/daemons/agent.ts';
import { grantOf } from '../agent/node.ts';

test('an Event reaches a pod in any namespace, and process grants get none', (t) => {
  const owner = { podUid: 'u1', podCreatedMs: 0 } as never;
  const record = (more: object) =>
    recordOf({
      grant: { ...grantOf('one', 100), ...more },
      action: 'kill',
      verdict: { severity: 'within' },
      atMs: 7,
      result: 'sent',
    });
  const events = eventsOf(
    [record({ namespace: 'local', owner }), record({ namespace: 'team', owner }), record({ namespace: 'local' })],
    'node-1',
  );
  t.deepEqual(
    events.map(({ namespace, podUid, reason, type, action, by }) => [
      namespace,
      podUid,
      reason,
      type,
      action,
      by.instance,
    ]),
    [
      ['local', 'u1', 'GPUMemoryQuotaExceeded', 'Warning', 'kill', 'node-1'],
      ['team', 'u1', 'GPUMemoryQuotaExceeded', 'Warning', 'kill', 'node-1'],
    ],
  );
});
