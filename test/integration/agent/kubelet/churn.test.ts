// Pods that come, use GPUs, are stopped or end, as many as a node has in days: the agent's node half keeps nothing of
// them. churn-inside.ts does it in a mount namespace of its own.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { namespacesReason, testUnless } from '../../../support/gate.ts';
import { inSimulatedHours } from '../../../support/machine/object-census.ts';
import { temporaryFolder } from '../../../support/native/node.ts';

/** Before what is counted, two actions on each: more than the audit log keeps of the newest. */
const PODS = 600;
/** One starts each ten seconds. */
const COUNTED_PODS = inSimulatedHours(360, 250);

testUnless(namespacesReason())('pods leave no object, mapping, mount or descriptor of the agent behind', (t) => {
  t.timeout(600_000 + 100 * COUNTED_PODS);
  const counts = [PODS, COUNTED_PODS].map(String);
  const program = [process.execPath, join(import.meta.dirname, 'churn-inside.ts'), 'churn', temporaryFolder(t)];
  const { status, stdout, stderr } = spawnSync('unshare', ['-m', '--propagation', 'private', ...program, ...counts], {
    encoding: 'utf8',
  });
  t.is(status, 0, stderr);
  t.log(stdout);
  const { grown, mappings, mounts, left, actions, refused } = JSON.parse(stdout) as Record<string, unknown>;
  t.deepEqual({ grown, mappings, mounts, left, refused }, { grown: [], mappings: 0, mounts: 0, left: 0, refused: 0 });
  t.true((actions as number) > COUNTED_PODS / 7, 'some were acted on');
});
