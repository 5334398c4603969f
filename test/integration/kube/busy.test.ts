// Who holds the Lease asks a busy API server again after the pause that it asks for.
import test from 'ava';
import { holdLease } from '../../../src/scheduler/leadership/leader-election.ts';
import { eventually } from '../../support/native/node.ts';
import { refuse, startApiServer } from '../../support/services/api-server.ts';

test('a Lease that a busy API server refuses is asked for again after its pause', async (t) => {
  const asked: number[] = [];
  const { config } = await startApiServer(t, (_, response) => {
    asked.push(performance.now());
    return refuse(response.setHeader('Retry-After', '4'), 429, 'too many requests');
  });
  const problems: string[] = [];
  const leadership = holdLease(config, { namespace: 'ns', name: 'l' }, 'me', (text) => problems.push(text));
  await eventually(() => asked.length > 1 || undefined, 'it is asked for again');
  await leadership.close();
  t.true((asked[1] ?? 0) - (asked[0] ?? 0) >= 4000);
  t.is(problems[0], 'cannot acquire or renew the Lease ns/l: status 429: too many requests');
  t.false(leadership.state().leads);
});
