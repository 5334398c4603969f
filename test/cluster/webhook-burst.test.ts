// A burst of creations on a real API server with one replica of the webhook. API servers open a connection for each review
// that waits (dialConnFor in Go's net/http/transport.go), and a connection that the webhook refused would cost a pod: the
// server does not send such a POST again (client-go's rest/request.go, isErrRetryableFunc).
import { testUnless } from '../support/gate.ts';
import { startLoneApiServer } from './bed/api-server.ts';
import { bedTools } from './bed/bed.ts';
import { eventually } from './bed/eventually.ts';
import { startCreator } from './support/creator.ts';
import { countIdle, LEAST_IDLE } from './support/idle.ts';
import { startReplicas } from './support/webhooks.ts';

const REPLICA = { name: 'webhook', port: 9443, probe: 9543 };
/** More than the 600 that an API server serves at once by default (--max-requests-inflight and its mutating part). */
const AT_ONCE = 800;
const PODS = 2 * AT_ONCE;

const tools = bedTools(console.log, false);

testUnless(tools.ok ? undefined : tools.reason)('pods that are created 800 at a time are all patched', async (t) => {
  t.timeout(600_000);
  if (!tools.ok) return;
  const server = await startLoneApiServer(t, tools);
  const { namespaces } = server;
  const { registerAt } = startReplicas(t, server, [REPLICA], 0);
  const ready = () => namespaces.run(['curl', '-sf', '-m', '2', `http://127.0.0.1:${REPLICA.probe}/readyz`]).code === 0;
  await eventually(() => ready() || undefined, 'the webhook serves');
  await registerAt(REPLICA.port);

  // The administrator is exempt from API priority and fairness, so that all of them are served at once.
  const idleShare = countIdle();
  const creation = startCreator(namespaces, server.kubeconfig, { mostAtOnce: AT_ONCE, most: PODS });
  const { asked, created, refusals, slowestMs } = await creation.created();
  const idle = idleShare();
  // On a machine without processors left a call may take the longest that a registration may give it.
  const [late, lost] = [true, false].map((is) =>
    refusals.filter(({ message }) => /deadline exceeded/.test(message) === is),
  );
  const took = `${asked} creates, the slowest in ${Math.round(slowestMs)} ms`;
  t.log(`${took}, ${late?.length} late; ${Math.round(100 * idle)} % of the processors idle`);
  t.deepEqual(lost, []);
  t.is(created, PODS - (late?.length ?? 0));
  t.true(late?.length === 0 || idle < LEAST_IDLE, took);
});
